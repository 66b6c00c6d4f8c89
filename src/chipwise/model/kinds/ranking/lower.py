"""Operators of a ranking model outside its layers, and of attention over requests.

The history is computed once for all candidates. In the last attention it only provides keys and values; after that
attention, only candidates are computed.
"""

from __future__ import annotations

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.lowering import Named, Operators, Pass, Place
from chipwise.model.kinds.ranking.candidates.lower import lower_attention, lower_items, lower_scores
from chipwise.model.kinds.ranking.stem import RankingStem


def last_attention(arch: ArchSpec) -> Place:
    """The last attention block, after which only the candidates are needed."""
    return max(i for i, layer in enumerate(arch.layers) if layer.attention is not None), "attention"


def _stem(at: Pass) -> None:
    stem = at.arch.stem_as(RankingStem)
    at.tokens = stem.tokens
    at.put("stem", lower_items(at.arch, stem, weights=at.head, batch=at.batch, joined="tables" in at.fused))


def _attend(at: Pass, layer: int, block: Attention, weights: str, last: bool) -> Named:
    stem, joined = at.arch.stem_as(RankingStem), "qkv" in at.fused
    return lower_attention(block, stem, at.arch.d_model, weights, batch=at.batch, last=last, joined=joined)


def _head(at: Pass) -> None:
    at.put_norm("norm")
    at.put("head", lower_scores(at.arch, at.arch.stem_as(RankingStem), weights=at.head, batch=at.batch))


OPERATORS = Operators(
    stem=_stem,
    attend=_attend,
    head=_head,
    last=last_attention,
    kept=lambda arch: arch.stem_as(RankingStem).candidates,
)
