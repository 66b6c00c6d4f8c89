"""Lowers the patch stem and the classification head to operators."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.matmul import ConvOp, Matmul
from chipwise.model.ops.op import Op
from chipwise.model.ops.pool import PoolOp


def lower_patches(arch: ArchSpec, stem: ImageStem, *, weights: str, batch: int) -> Iterator[tuple[str, Op]]:
    """The operators from ``batch`` images to the residual stream.

    The matrix's bias, the class token and the positions are added together, as one table.
    """
    d, patches = arch.d_model, batch * stem.patches
    rows = patches + batch * stem.prefix_tokens
    for i, ((into, out), area) in enumerate(zip(stem.conv_shapes(), stem.areas[1:], strict=True)):
        conv = ConvOp(
            batch=batch,
            positions=area,
            in_channels=into,
            out_channels=out,
            taps=stem.taps,
            input_positions=stem.areas[i],
            bias=True,
        )
        yield f"convs.{i}", conv
        yield f"activations.{i}", Elementwise(function="gelu", elements=batch * area * out)
    yield "patches", Elementwise(function="transpose", elements=patches * stem.values)
    yield "projection", Matmul(m=patches, k=stem.values, n=d, weights=weights)
    if stem.prefix_tokens:
        yield "room", Elementwise(function="pad", elements=rows * d)
    if adds_table(arch, stem):
        yield "positions", Elementwise(function="add", elements=rows * d, inputs=2)


def adds_table(arch: ArchSpec, stem: ImageStem) -> bool:
    """Whether the graph adds a constant table to the patches: positions, class token or the patch matrix's bias.

    If a question follows, no table is added here, because positions are then added after the projector.
    """
    asks = arch.stem.asks
    return not asks and (arch.positions == "learned" or stem.prefix_tokens > 0 or stem.bias)


def lower_classes(arch: ArchSpec, *, weights: str, batch: int, positions: int) -> list[tuple[str, Op]]:
    """The operators of mean pooling over ``positions`` (if more than one), and of the matrix over classes."""
    head = Matmul(m=batch, k=arch.d_model, n=arch.outputs, weights=weights, bias=True)
    if positions == 1:
        return [("logits", head)]
    return [("mean", PoolOp(batch=batch, positions=positions, width=arch.d_model)), ("logits", head)]
