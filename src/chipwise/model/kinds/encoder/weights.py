"""Names and shapes of a text encoder's weights outside its layers."""

from __future__ import annotations

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Pooler
from chipwise.model.blocks.weights import Shapes, linear, norm


def stem(arch: ArchSpec) -> Shapes:
    """Weights of the token, position and segment tables, and of the norm of their sum."""
    yield "embedding.weight", (arch.vocab_size, arch.d_model)
    yield "positions.weight", (arch.max_tokens, arch.d_model)
    segments = arch.stem.token_types
    if segments:
        yield "token_types.weight", (segments, arch.d_model)
    if arch.embedding_norm:
        yield from norm(arch, "embedding_norm")


def head(arch: ArchSpec) -> Shapes:
    """Weights of the pooler, if there is one."""
    if isinstance(arch.head, Pooler):
        yield from linear("pooler", arch.d_model, arch.d_model, bias=True)
