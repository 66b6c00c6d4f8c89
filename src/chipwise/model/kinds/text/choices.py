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
    """The search choices of text decoders: only those that all kinds of models have."""

    __slots__ = ()
    noun = "text"
    models = "decoders"
    one_pass = False
    choices = ()
    outputs = 0
    bare = True

    def attention(self, heads: tuple[int | str, ...], kv_heads: tuple[int, ...]) -> tuple[Parts, ...]:
        """Pairs (heads, KV heads) in which the number of KV heads divides the number of heads.

        ``NO_ATTENTION`` comes last if ``heads`` lists ``none``.
        """
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
        """Builds the decoder from ``layers``, with the vocabulary size in ``chosen``."""
        stem, head = Tokens(vocab_size=chosen["vocab_size"]), LmHead(tied=chosen["tie_embeddings"])
        norms = {"norm_place": whole.norm_place, "final_norm": whole.norm_place != "post"}
        return whole.around(layers)(stem=stem, head=head, max_tokens=whole.max_tokens, **norms)

    def request_tokens(self, chosen: Chosen) -> int:
        """Returns 0: requests have no fixed length."""
        return 0


TEXT = TextChoices()
