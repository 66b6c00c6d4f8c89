"""Weights of a decoder's table of tokens and of its head."""

from __future__ import annotations

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.weights import Shapes, norm


def stem(arch: ArchSpec) -> Shapes:
    """The tables of tokens and positions."""
    yield "embedding.weight", (arch.vocab_size, arch.d_model)
    if arch.positions == "learned":
        yield "positions.weight", (arch.max_tokens, arch.d_model)


def head(arch: ArchSpec) -> Shapes:
    """The last norm, and the head where it is not the table of tokens."""
    yield from norm(arch, "norm")
    if not arch.tie_embeddings:
        yield "head.weight", (arch.vocab_size, arch.d_model)
