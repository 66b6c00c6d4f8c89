"""Ranking models: the fourth kind of model that chipwise builds, trains and exports itself (see ``plain``).

A history and candidates; pre-norm layers in which every position sees the history before it and itself, with a bias by
distance; a score for each candidate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.departures import unbuilt
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.ranking.stem import RankingStem

_FREE = {"stem", "head", "relative_buckets", "pointwise"}  # later fields that ranking models set


def is_ranker(arch: ArchSpec) -> bool:
    """Whether ``arch`` is a ranking model that chipwise can build."""
    return isinstance(arch.stem, RankingStem) and next(_departures(arch, arch.stem), None) is None


def require_ranker(arch: ArchSpec, *, work: str) -> RankingStem:
    """The stem of ``arch``, if it is a ranking model that chipwise builds.

    Raises:
        Unsupported: It is not; names the block or field, and where it stands.
    """
    stem: Any = arch.stem
    if not isinstance(stem, RankingStem):
        raise Unsupported(f"{arch.name} cannot be {work}: it does not rank candidates")
    found = next(_departures(arch, stem), None)
    if found is not None:
        raise Unsupported(f"{arch.name} cannot be {work}: {found}; chipwise estimate prices it all the same")
    return stem


def with_candidates(arch: ArchSpec, count: int) -> ArchSpec:
    """The same model and weights for requests of ``count`` candidates.

    Raises:
        SpecError: ``count`` is below 1.
        Unsupported: ``arch`` does not rank candidates.
    """
    stem: Any = arch.stem
    if not isinstance(stem, RankingStem):
        raise Unsupported(f"{arch.name} does not rank candidates")
    return replace(arch, stem=replace(stem, candidates=count))


def last_attention(arch: ArchSpec) -> int:
    """The last layer in which positions look at the history; after it only candidates are needed."""
    return max(i for i, layer in enumerate(arch.layers) if layer.attention is not None)


def _departures(arch: ArchSpec, stem: RankingStem) -> Iterator[str]:
    yield from unbuilt(arch, free=_FREE)
    if arch.positions != "none":
        yield f"positions = {arch.positions!r} is not built for ranking: attention has a bias by distance"
    if stem.shards > 1:
        yield f"tables in {stem.shards} shards are not built"
    if all(layer.attention is None for layer in arch.layers):
        yield "a model without attention, in which candidates see no history, is not built"
    for i, layer in enumerate(arch.layers):
        for name in unbuilt(layer, free=_FREE):
            yield f"layers[{i}].{name}"
        if layer.shares is not None:
            yield f"layers[{i}].shares is not built for ranking"
        for name, block, built in (("attention", layer.attention, Attention), ("ffn", layer.ffn, FeedForward)):
            if block is not None and not isinstance(block, built):
                yield f"layers[{i}].{name} is a {type(block).__name__} block, which is not built"
        if isinstance(layer.attention, Attention):
            yield from (f"layers[{i}].attention.{name}" for name in _departed_attention(layer.attention, stem))
        if isinstance(layer.ffn, FeedForward):
            yield from (f"layers[{i}].ffn.{name}" for name in unbuilt(layer.ffn, free=_FREE))
        if isinstance(layer.ffn, FeedForward) and layer.ffn.activation == "relu2":
            yield f"layers[{i}].ffn.activation relu2 is not built"


def _departed_attention(block: Attention, stem: RankingStem) -> Iterator[str]:
    yield from unbuilt(block, free=_FREE)
    if not block.causal:
        yield "causal = False is not built for ranking"
    if block.kv_heads != block.heads:
        yield "kv_heads other than heads is not built for ranking"
    if block.relative_buckets != stem.history + 1:
        yield f"relative_buckets = {block.relative_buckets} for a history of {stem.history} is not built"
    for name in ("rope", "qk_norm", "window"):
        if getattr(block, name):
            yield f"{name} is not built for ranking"
