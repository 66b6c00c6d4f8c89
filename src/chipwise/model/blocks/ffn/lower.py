"""Feed-forward as operators."""

from __future__ import annotations

from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.op import Op


def lower(block: FeedForward, *, d_model: int, weights: str, rows: int, joined: bool = False) -> list[tuple[str, Op]]:
    """The operators in order, each with its name inside the block. ``joined`` fuses gate and up projections."""
    ops: list[tuple[str, Op]]
    if block.groups > 1:  # the graph has a feed-forward of each part
        part, width = block.one_group(), d_model // block.groups
        moved = EmbeddingOp(tokens=rows, width=d_model, rows=rows)  # a copy of every row
        ops = [("parts", moved)]
        for group in range(block.groups):
            inner_ops = lower(part, d_model=width, weights=weights, rows=rows)
            ops += [(f"{name}.{group}", op) for name, op in inner_ops]
        return [*ops, ("joined", moved)]
    into = Matmul(m=rows, k=d_model, n=block.width, weights=weights, bias=block.bias)
    inner = rows * block.width
    ops = [("gate", into), ("up", into)] if block.gated else [("up", into)]
    if block.gated and joined:
        both = Matmul(m=rows, k=d_model, n=2 * block.width, weights=weights, bias=block.bias)
        ops = [("into", both), ("parts", Elementwise(function="copy", elements=2 * inner))]
    ops.append(("activation", Elementwise(function=block.activation, elements=inner)))
    if block.gated:
        ops.append(("product", Elementwise(function="mul", elements=inner, inputs=2)))
    ops.append(("down", Matmul(m=rows, k=block.width, n=d_model, weights=weights, bias=block.bias)))
    return ops
