"""Operators of a decoder outside its layers, and of attention with a KV cache."""

from __future__ import annotations

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.attention.lower import lower as lower_attention
from chipwise.model.blocks.embedding.lower import lower_cut, lower_embedding, lower_head
from chipwise.model.blocks.lowering import Named, Operators, Pass, Place


def last_mixing(arch: ArchSpec) -> Place | None:
    """The last block that mixes positions: an attention, or a block with a convolution; None if there is none.

    After that block's attention or convolution, positions are independent, so only the last position of each sequence
    is needed.
    """
    found: Place | None = None
    for i, layer in enumerate(arch.layers):
        if layer.attention is not None:
            found = (i, "attention")
        if layer.ffn_conv:
            found = (i, "ffn")
    return found


def _stem(at: Pass) -> None:
    at.put("embedding", lower_embedding(at.arch, rows=at.rows))
    if at.last_only and at.last is None:
        at.put("embedding", [("last", lower_cut(width=at.arch.d_model, rows=at.rows, kept=at.batch))])
        at.tokens = 1


def _attend(at: Pass, layer: int, block: Attention, weights: str, last: bool) -> Named:
    sizes = {"batch": at.batch, "query_tokens": at.tokens, "past_tokens": at.past}
    return lower_attention(block, d_model=at.arch.d_model, weights=weights, cut=last, **sizes)


def _head(at: Pass) -> None:
    at.put_end()
    at.put("head", [("", lower_head(at.arch, weights=at.head, rows=at.rows))])


OPERATORS = Operators(stem=_stem, attend=_attend, head=_head, last=last_mixing)
