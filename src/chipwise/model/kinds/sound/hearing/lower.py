"""The stem of a pretrained audio encoder as operators."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.norm.lower import lower as lower_norm
from chipwise.model.kinds.sound.stem import SoundConv, SoundStem
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.matmul import DENSE_CONV, ConvOp, Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.op import Op


def lower_sound(arch: ArchSpec, stem: SoundStem, *, weights: str, batch: int) -> Iterator[tuple[str, Op]]:
    """Yields the operators from ``batch`` sounds to the residual stream, as pairs (name inside the stem, operator).

    ``weights`` is the format of the matrix. Convolutions are always in FP32.
    """
    d, rows = arch.d_model, batch * stem.tokens
    lengths = stem.areas()
    for i, (conv, into) in enumerate(zip(stem.convs, stem.conv_inputs(), strict=True)):
        yield from _conv(conv, f"convs.{i}", into=into, batch=batch, positions=lengths[i + 1])
    yield "turned", Elementwise(function="transpose", elements=rows * stem.values)
    if stem.matrix_norm:
        yield "norm", NormOp(rows=rows, width=stem.values, norm="layernorm", bias=True)
    if stem.matrix:
        yield "projection", Matmul(m=rows, k=stem.values, n=d, weights=weights, bias=True)
    if stem.position_taps:
        yield "places.turned", Elementwise(function="transpose", elements=rows * d)
        seen = d // stem.position_groups * stem.position_taps
        yield "places", Matmul(m=rows, k=seen, n=d, bias=True)
        yield "places.activation", Elementwise(function="gelu", elements=rows * d)
        yield "places.back", Elementwise(function="transpose", elements=rows * d)
    if stem.position_taps or stem.position_rows:
        yield "placed", Elementwise(function="add", elements=rows * d, inputs=2)
    if arch.embedding_norm:
        yield "embedding_norm", lower_norm(arch, rows=rows, skip=False)


def _conv(conv: SoundConv, place: str, *, into: int, batch: int, positions: int) -> Iterator[tuple[str, Op]]:
    rows, values = batch * positions, batch * positions * conv.channels
    if conv.kernel * into >= DENSE_CONV:
        yield place, Matmul(m=rows, k=conv.kernel * into, n=conv.channels, bias=conv.bias)
    else:
        op = ConvOp(
            batch=batch,
            positions=positions,
            in_channels=into,
            out_channels=conv.channels,
            taps=conv.kernel,
            input_positions=positions * conv.stride,
            bias=conv.bias,
            centred=True,
        )
        yield place, op
    if conv.norm == "group":  # normed per channel, over time
        yield f"{place}.norm", NormOp(rows=batch * conv.channels, width=positions, norm="layernorm", bias=True)
    elif conv.norm == "layer":
        yield f"{place}.turned", Elementwise(function="transpose", elements=values)
        yield f"{place}.norm", NormOp(rows=rows, width=conv.channels, norm="layernorm", bias=True)
        yield f"{place}.back", Elementwise(function="transpose", elements=values)
    yield f"{place}.activation", Elementwise(function="gelu", elements=values)
