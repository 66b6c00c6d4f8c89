"""Builds text decoders from choices: grouped-query attention, and a head that may be tied to the token table."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import LmHead, Tokens
from chipwise.model.arch.layer import AnyFeedForward, Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.choices import NO_ATTENTION, Choices, Chosen, Parts, Whole


class TextChoices(Choices):
    """Text decoders, which have only the choices that all spaces have."""

    __slots__ = ()
    noun = "text"
    models = "decoders"
    one_pass = False
    choices = ()
    outputs = 0
    bare = True

    def attention(self, heads: tuple[int | str, ...], kv_heads: tuple[int, ...]) -> tuple[Parts, ...]:
        """Possible (heads, KV heads), where KV heads divide heads; ``NO_ATTENTION`` last, if heads may be ``none``."""
        counted = [many for many in heads if isinstance(many, int)]
        pairs = tuple((many, few) for many, few in itertools.product(counted, kv_heads) if many % few == 0)
        return (*pairs, NO_ATTENTION) if len(counted) < len(heads) else pairs

    def layer(self, chosen: Chosen, parts: Parts, *, head_size: int, ffn: AnyFeedForward | None) -> Layer:
        """A layer without biases."""
        if parts == NO_ATTENTION:
            return Layer(attention=None, ffn=ffn)
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
            norm_place=whole.norm_place,
            final_norm=whole.norm_place != "post",
        )

    def request_tokens(self, chosen: Chosen) -> int:
        """0: requests have no fixed length."""
        return 0


TEXT = TextChoices()
