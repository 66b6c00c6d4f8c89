"""Patches and the head over classes as operators."""

from __future__ import annotations

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.matmul import ConvOp, Matmul
from chipwise.model.ops.op import Op
from chipwise.model.ops.pool import PoolOp


def lower_patches(arch: ArchSpec, stem: ImageStem, *, weights: str, batch: int) -> list[tuple[str, Op]]:
    """The operators from ``batch`` images to the residual stream. Biases, class token and positions are one table."""
    d, patches = arch.d_model, batch * stem.patches
    rows = patches + batch * stem.prefix_tokens
    ops: list[tuple[str, Op]] = []
    for i, ((into, out), area) in enumerate(zip(stem.conv_shapes(), stem.areas[1:], strict=True)):
        ops.append(
            (
                f"convs.{i}",
                ConvOp(
                    batch=batch,
                    positions=area,
                    in_channels=into,
                    out_channels=out,
                    taps=stem.taps,
                    input_positions=stem.areas[i],
                    bias=True,
                ),
            )
        )
        ops.append((f"activations.{i}", Elementwise(function="gelu", elements=batch * area * out)))
    ops.append(("patches", Elementwise(function="transpose", elements=patches * stem.values)))
    ops.append(("projection", Matmul(m=patches, k=stem.values, n=d, weights=weights)))
    if stem.prefix_tokens:
        ops.append(("room", Elementwise(function="pad", elements=rows * d)))
    if adds_table(arch, stem):
        ops.append(("positions", Elementwise(function="add", elements=rows * d, inputs=2)))
    return ops


def adds_table(arch: ArchSpec, stem: ImageStem) -> bool:
    """Whether a table of positions, class token or matrix bias is added to the patches.

    False if a question follows: positions are then added after the projector and the words.
    """
    asks = arch.stem.asks
    return not asks and (arch.positions == "learned" or stem.prefix_tokens > 0 or stem.bias)


def lower_classes(arch: ArchSpec, *, weights: str, batch: int, positions: int) -> list[tuple[str, Op]]:
    """The operators of mean pooling over ``positions`` (if more than one), and of the matrix over classes."""
    head = Matmul(m=batch, k=arch.d_model, n=arch.outputs, weights=weights, bias=True)
    if positions == 1:
        return [("logits", head)]
    return [("mean", PoolOp(batch=batch, positions=positions, width=arch.d_model)), ("logits", head)]
