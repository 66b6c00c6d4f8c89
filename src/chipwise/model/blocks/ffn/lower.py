"""Feed-forward as operators."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.op import Op


def lower(
    block: FeedForward, *, d_model: int, weights: str, rows: int, joined: bool = False
) -> Iterator[tuple[str, Op]]:
    """The operators in order, each with its name inside the block. ``joined`` fuses the gate and up projections."""
    if block.groups > 1:  # the graph has a feed-forward of each part
        part, width = block.one_group(), d_model // block.groups
        moved = EmbeddingOp(tokens=rows, width=d_model, rows=rows)  # a copy of every row
        yield "parts", moved
        for group in range(block.groups):
            for name, op in lower(part, d_model=width, weights=weights, rows=rows):
                yield f"{name}.{group}", op
        yield "joined", moved
        return
    into = Matmul(m=rows, k=d_model, n=block.width, weights=weights, bias=block.bias)
    inner = rows * block.width
    if block.gated and joined:
        yield "into", Matmul(m=rows, k=d_model, n=2 * block.width, weights=weights, bias=block.bias)
        yield "parts", Elementwise(function="copy", elements=2 * inner)
    else:
        if block.gated:
            yield "gate", into
        yield "up", into
    yield "activation", Elementwise(function=block.activation, elements=inner)
    if block.gated:
        yield "product", Elementwise(function="mul", elements=inner, inputs=2)
    yield "down", Matmul(m=rows, k=block.width, n=d_model, weights=weights, bias=block.bias)
