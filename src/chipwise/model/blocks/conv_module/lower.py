"""The convolution module as operators."""

from __future__ import annotations

from chipwise.model.arch.mixers import ConvModule
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.matmul import ConvOp, Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.op import Op


def lower_module(block: ConvModule, *, d_model: int, weights: str, batch: int, positions: int) -> list[tuple[str, Op]]:
    """The operators in order, each with its name inside the block. The filter includes two transpositions."""
    rows = batch * positions
    values = rows * d_model
    return [
        ("into", Matmul(m=rows, k=d_model, n=2 * d_model, weights=weights, bias=block.bias)),
        ("split", Elementwise(function="split", elements=2 * values)),
        ("gate", Elementwise(function="sigmoid", elements=values)),
        ("gated", Elementwise(function="mul", elements=values, inputs=2)),
        ("filter", lower_filter(block, d_model=d_model, batch=batch, positions=positions)),
        ("norm", NormOp(rows=rows, width=d_model, norm="layernorm", bias=True)),
        ("activation", Elementwise(function="silu", elements=values)),
        ("out", Matmul(m=rows, k=d_model, n=d_model, weights=weights, bias=block.bias)),
    ]


def lower_filter(block: ConvModule, *, d_model: int, batch: int, positions: int) -> ConvOp:
    """The depthwise filter over positions."""
    return ConvOp(
        batch=batch,
        positions=positions,
        in_channels=d_model,
        out_channels=d_model,
        taps=block.taps,
        groups=d_model,
        bias=block.bias,
        centred=True,
    )
