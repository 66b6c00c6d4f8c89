"""Names and shapes of a decoder's weights outside its layers."""

from __future__ import annotations

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.weights import Shapes, norm


def stem(arch: ArchSpec) -> Shapes:
    """Weights of the token table and, if positions are learned, of the position table."""
    yield "embedding.weight", (arch.vocab_size, arch.d_model)
    if arch.positions == "learned":
        yield "positions.weight", (arch.max_tokens, arch.d_model)


def head(arch: ArchSpec) -> Shapes:
    """Weights of the final norm, if there is one, and of the head if it is not tied."""
    if arch.final_norm:
        yield from norm(arch, "norm")
    if not arch.tie_embeddings:
        yield "head.weight", (arch.vocab_size, arch.d_model)
