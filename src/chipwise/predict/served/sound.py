"""Lowers the stem of audio models: convolutions over samples or frames, and positions."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.core.dtypes import Size
from chipwise.model.kinds.sound.stem import SoundStem
from chipwise.model.ops.matmul import DENSE_CONV, ConvOp
from chipwise.predict.served.setting import PlacedOp, Setting, Step


def stem(setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """The positions of a request's sound."""
    yield from frames(setting.arch.stem_as(SoundStem), setting, step.batch)


def frames(block: SoundStem, setting: Setting, batch: Size) -> Iterator[PlacedOp]:
    """The operators of any audio stem, such as an encoder's; ``setting`` is that of the layers after it."""
    for part in _frames(block, setting, batch):
        yield part.inside("stem")


def _frames(block: SoundStem, setting: Setting, batch: Size) -> Iterator[PlacedOp]:
    """Convolutions with norms and activations, the matrix to the model's width, and positions.

    ``setting`` is that of the layers after the stem. The activation after a convolution is a separate kernel.
    """
    formats, d = setting.formats, setting.arch.d_model
    areas = block.areas()
    for i, (conv, into) in enumerate(zip(block.convs, block.conv_inputs(), strict=True)):
        taps = conv.kernel**block.axes
        if conv.groups == 1 and into * taps >= DENSE_CONV:
            yield setting.plain_matmul(f"convs.{i}", batch * areas[i + 1], into * taps, conv.channels, bias=conv.bias)
        else:
            op = ConvOp(
                batch=batch,
                positions=areas[i + 1],
                in_channels=into,
                out_channels=conv.channels,
                taps=taps,
                groups=conv.groups,
                input_positions=areas[i],
                weights=formats.activations,
                activations=formats.activations,
                bias=conv.bias,
            )
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
        op = ConvOp(
            batch=batch,
            positions=block.tokens,
            in_channels=d,
            out_channels=d,
            taps=block.position_taps,
            groups=block.position_groups,
            weights=formats.activations,
            activations=formats.activations,
            bias=True,
        )
        yield PlacedOp(place="positions", op=op)
        yield setting.elementwise("positions.gelu", "gelu", tokens * d)
        yield setting.elementwise("positions.add", "add", tokens * d)
    learned = setting.arch.stem is block and setting.arch.positions == "learned"
    if block.position_rows or learned:
        yield setting.table("positions", tokens, d, block.position_rows or setting.arch.max_tokens)
