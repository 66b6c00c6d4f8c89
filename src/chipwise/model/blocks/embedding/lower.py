"""Token table, learned positions and head as operators."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.op import Op


def lower_embedding(arch: ArchSpec, *, rows: int) -> Iterator[tuple[str, Op]]:
    """Operators that look up the token embeddings and, if positions are learned, add the position embeddings."""
    yield "tokens", EmbeddingOp(tokens=rows, width=arch.d_model, rows=arch.vocab_size)
    if arch.positions == "learned":
        yield "positions", EmbeddingOp(tokens=rows, width=arch.d_model, rows=arch.max_tokens)
        yield "add", Elementwise(function="add", elements=rows * arch.d_model, inputs=2)


def lower_cut(*, width: int, rows: int, kept: int) -> EmbeddingOp:
    """The operator that selects ``kept`` of ``rows`` positions.

    An example is the selection of each sequence's last position before the head.
    """
    return EmbeddingOp(tokens=kept, width=width, rows=rows)


def lower_head(arch: ArchSpec, *, weights: str, rows: int) -> Matmul:
    """The operator that computes the logits of ``rows`` positions."""
    return Matmul(m=rows, k=arch.d_model, n=arch.vocab_size, weights=weights)
