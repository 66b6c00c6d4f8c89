"""Ranking models that chipwise builds, trains and exports itself.

Such a model reads a history and candidates. Its pre-norm layers let every position attend to the history before it and
to itself, with relative position biases. It outputs a score for each candidate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.departures import encoding_departures, in_layers, unbuilt
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.form import Form, Modelling, Sketch, same_ends
from chipwise.model.kinds.ranking import lower, weights
from chipwise.model.kinds.ranking.stem import RankingStem

_FREE = {"stem", "head", "relative_buckets", "pointwise"}  # ``later`` fields that ranking models set


def with_candidates(arch: ArchSpec, count: int) -> ArchSpec:
    """A copy for requests of ``count`` candidates. It has the same weights.

    Raises:
        SpecError: ``count`` is below 1.
        Unsupported: ``arch`` does not rank candidates.
    """
    return replace(arch, stem=replace(arch.stem_as(RankingStem), candidates=count))


def _departures(arch: ArchSpec) -> Iterator[str]:
    stem = arch.stem_as(RankingStem)
    yield from unbuilt(arch, free=_FREE)
    if arch.positions != "none":
        yield f"positions = {arch.positions!r} is not supported for ranking, where attention has position biases"
    if stem.shards > 1:
        yield f"tables in {stem.shards} shards are not supported"
    if all(layer.attention is None for layer in arch.layers):
        yield "a model without attention is not supported: candidates would not depend on the history"
    yield from in_layers(arch.layers, lambda layer: _layer_departures(layer, stem.history))


def _layer_departures(layer: Layer, history: int) -> Iterator[str]:
    yield from encoding_departures(layer, free=_FREE, where="for ranking", causal=True)
    block = layer.attention
    if isinstance(block, Attention) and block.relative_buckets != history + 1:
        yield f"attention.relative_buckets = {block.relative_buckets} is not supported with a history of {history}"


def _sketch(arch: ArchSpec) -> Sketch:
    mixing = "hstu" if any(layer.attention and layer.attention.pointwise for layer in arch.layers) else "attention"
    return Sketch(first=f"{mixing} {arch.stem_as(RankingStem).table} {arch.head.name}")


def _same_requests(sub: ArchSpec, whole: ArchSpec) -> None:
    """Checks that the stems differ only in the number of candidates and in the width of table rows.

    The width may differ only if both models have a matrix after the tables.
    """
    same_ends(sub, whole)
    small, large = sub.stem_as(RankingStem), whole.stem_as(RankingStem)
    if bool(small.width) != bool(large.width) or small.width > large.width:
        raise SpecError(
            f"rows of {small.width} values do not fit into the larger model's rows of {large.width}", field="stem.width"
        )
    if replace(small, candidates=large.candidates, width=large.width) != large:
        raise SpecError("must have the same history, items and tags as the larger model", field="stem")


def _inputs(arch: ArchSpec, generator: np.random.Generator, batch: int) -> tuple[AnyArray, ...]:
    """A batch of random requests. Items and tags include 0, the padding value."""
    stem = arch.stem_as(RankingStem)
    items = generator.integers(0, stem.items + 1, (batch, stem.tokens, 1))
    return (np.concatenate((items, generator.integers(0, stem.tags + 1, (batch, stem.tokens, stem.bag))), axis=2),)


RANKER = Form(
    name="ranker",
    stem=RankingStem,
    other="it does not rank candidates",
    departures=_departures,
    does=lambda arch: "ranks candidates",
    weights=(weights.stem, weights.head),
    package="ranking",
    modelling=lambda arch: Modelling("modeling_chipwise_ranking.py", "AutoModel", "ChipwiseRanker"),
    inputs=_inputs,
    outputs="scores",
    operators=lower.OPERATORS,
    task=lambda arch: "ranking",
    sketch=_sketch,
    check_cut=_same_requests,
    shrinks=True,
    tables_shared=True,
)
