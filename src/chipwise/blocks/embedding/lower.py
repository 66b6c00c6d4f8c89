"""Token table, learned positions and head as operators. Only the last position of each sequence meets the head."""

from __future__ import annotations

from chipwise.ops import Elementwise, EmbeddingOp, Matmul, Op
from chipwise.spec import ArchSpec


def lower_embedding(arch: ArchSpec, *, rows: int) -> list[tuple[str, Op]]:
    """Gathering the tokens' rows, and adding the positions' rows where they are learned."""
    ops: list[tuple[str, Op]] = [("tokens", EmbeddingOp(tokens=rows, width=arch.d_model, rows=arch.vocab_size))]
    if arch.positions == "learned":
        ops.append(("positions", EmbeddingOp(tokens=rows, width=arch.d_model, rows=arch.max_tokens)))
        ops.append(("add", Elementwise(function="add", elements=rows * arch.d_model, inputs=2)))
    return ops


def lower_head(arch: ArchSpec, *, weights: str, sequences: int) -> Matmul:
    """Logits of one position per sequence."""
    return Matmul(m=sequences, k=arch.d_model, n=arch.vocab_size, weights=weights)
