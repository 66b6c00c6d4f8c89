"""Token table, learned positions and head as operators."""

from __future__ import annotations

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.op import Op


def lower_embedding(arch: ArchSpec, *, rows: int) -> list[tuple[str, Op]]:
    """Gathers the tokens' rows, and adds the positions' rows if positions are learned."""
    ops: list[tuple[str, Op]] = [("tokens", EmbeddingOp(tokens=rows, width=arch.d_model, rows=arch.vocab_size))]
    if arch.positions == "learned":
        ops.append(("positions", EmbeddingOp(tokens=rows, width=arch.d_model, rows=arch.max_tokens)))
        ops.append(("add", Elementwise(function="add", elements=rows * arch.d_model, inputs=2)))
    return ops


def lower_cut(*, width: int, rows: int, kept: int) -> EmbeddingOp:
    """Picks ``kept`` of ``rows`` rows: the last position of each sequence, if only its logits are needed."""
    return EmbeddingOp(tokens=kept, width=width, rows=rows)


def lower_head(arch: ArchSpec, *, weights: str, rows: int) -> Matmul:
    """The logits of ``rows`` positions as operators."""
    return Matmul(m=rows, k=arch.d_model, n=arch.vocab_size, weights=weights)
