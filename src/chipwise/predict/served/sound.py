"""Lowers the stem of audio models: convolutions over samples or spectrogram frames, and positions."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.core.dtypes import Size
from chipwise.model.kinds.sound.stem import SoundStem
from chipwise.model.ops.matmul import DENSE_CONV
from chipwise.predict.served.setting import PlacedOp, Setting, Step


def stem(setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """The operators that turn a request's sound into positions."""
    yield from frames(setting.arch.stem_as(SoundStem), setting, step.batch)


def frames(block: SoundStem, setting: Setting, batch: Size) -> Iterator[PlacedOp]:
    """The operators of an audio stem; ``setting`` is that of the layers after the stem."""
    for part in _frames(block, setting, batch):
        yield part.inside("stem")


def _frames(block: SoundStem, setting: Setting, batch: Size) -> Iterator[PlacedOp]:
    """The operators of the stem: convolutions with norms and activations, a matrix to the model's width, positions.

    ``setting`` is that of the layers after the stem. The activation after a convolution is a separate kernel.
    """
    d, areas = setting.arch.d_model, block.areas()
    for i, (conv, into) in enumerate(zip(block.convs, block.conv_inputs(), strict=True)):
        taps = conv.kernel**block.axes
        if conv.groups == 1 and into * taps >= DENSE_CONV:
            yield setting.plain_matmul(f"convs.{i}", batch * areas[i + 1], into * taps, conv.channels, bias=conv.bias)
        else:
            sizes = {"in_channels": into, "out_channels": conv.channels, "taps": taps, "groups": conv.groups}
            inputs, outputs = areas[i], areas[i + 1]
            op = setting.conv(batch=batch, positions=outputs, input_positions=inputs, bias=conv.bias, **sizes)
            yield PlacedOp(place=f"convs.{i}", op=op)
        values = batch * areas[i + 1] * conv.channels
        if conv.norm != "none":
            yield setting.norm_of(f"norms.{i}", batch * areas[i + 1], conv.channels, "layernorm")
        if conv.activation != "none":
            function = {"relu": "relu", "gelu": "gelu", "tanh": "sigmoid"}[conv.activation]
            yield setting.elementwise(f"activations.{i}", function, values)  # type: ignore[arg-type]
    tokens = batch * block.tokens
    if block.matrix_norm:
        yield setting.norm_of("norm", tokens, block.values, "layernorm")
    if block.matrix:
        yield setting.plain_matmul("matrix", tokens, block.values, d, bias=True)
    if block.position_taps:
        sizes = {"in_channels": d, "out_channels": d, "taps": block.position_taps, "groups": block.position_groups}
        op = setting.conv(batch=batch, positions=block.tokens, bias=True, **sizes)
        yield PlacedOp(place="positions", op=op)
        yield setting.elementwise("positions.gelu", "gelu", tokens * d)
        yield setting.elementwise("positions.add", "add", tokens * d)
    learned = setting.arch.stem is block and setting.arch.positions == "learned"
    if block.position_rows or learned:
        yield setting.table("positions", tokens, d, block.position_rows or setting.arch.max_tokens)
