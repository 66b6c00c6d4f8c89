"""Builds text decoders from choices: grouped-query attention, and a head that may be tied to the token table."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import LmHead, Tokens
from chipwise.model.arch.layer import AnyFeedForward, Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.choices import Choices, Chosen, Whole


class TextChoices(Choices):
    """Text decoders, which have only the choices that all spaces have."""

    __slots__ = ()
    noun = "text"
    models = "decoders"
    one_pass = False
    choices = ()
    outputs = 0

    def attention(self, heads: tuple[int, ...], kv_heads: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Possible (heads, KV heads), where KV heads divide heads."""
        return tuple((many, few) for many, few in itertools.product(heads, kv_heads) if many % few == 0)

    def layer(self, chosen: Chosen, parts: tuple[int, ...], *, head_size: int, ffn: AnyFeedForward | None) -> Layer:
        """A layer without biases."""
        heads, kv_heads = parts
        return Layer(attention=Attention(heads=heads, kv_heads=kv_heads, head_size=head_size), ffn=ffn)

    def arch(self, chosen: Chosen, layers: Iterable[Layer], whole: Whole) -> ArchSpec:
        """The decoder of ``layers`` with the vocabulary size in ``chosen``."""
        return ArchSpec(
            name=whole.name,
            stem=Tokens(vocab_size=chosen["vocab_size"]),
            head=LmHead(tied=chosen["tie_embeddings"]),
            d_model=whole.d_model,
            layers=tuple(layers),
            max_tokens=whole.max_tokens,
            norm=whole.norm,
        )

    def request_tokens(self, chosen: Chosen) -> int:
        """0: requests have no fixed length."""
        return 0


TEXT = TextChoices()
