"""Spaces of ranking models: every row is a design, prices of blocks add up to those of whole models."""

from __future__ import annotations

from typing import Any

import pytest

from chipwise.core.fields import build
from chipwise.errors import SpecError
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import SpaceSpec
from support.space_suite import SpaceSuite

RANKING: dict[str, Any] = {
    "items": 40,
    "history": 10,
    "candidates": 6,
    "tags": 5,
    "bag": 2,
    "mixing": ["attention", "hstu"],
    "table": ["full", "w8"],
    "score": ["similarity", "scores"],
}
FIELDS: dict[str, Any] = {
    "ranking": RANKING,
    "d_model": [16, 32],
    "depth": [1, 3],
    "head_size": [8, 16],
    "weights": ["fp32", "int8"],
    "layers": "alike",
    "layer": {"heads": [1, 2], "ffn": ["relu", "swiglu", "none"], "ffn_width": [24, 48]},
}


def space_of(**changes: Any) -> SearchSpace:
    return SearchSpace(build(SpaceSpec, FIELDS | changes))


class TestRankingSpaces(SpaceSuite):
    """Kinds of attention, tables and scores."""

    def spaces(self) -> dict[str, SpaceSpec]:
        return {"alike": space_of().spec}


def test_the_number_of_designs_by_pencil() -> None:
    """Widths, depths, heads' sizes, formats, kinds of attention, tables, scores and heads: 2 each, 256 in all.

    Five feed-forwards: two kinds of two widths, and none, whose width is nobody's choice.
    """
    assert space_of().size() == 256 * 5


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"vocab_size": [256]}, "vocab_size"),
        ({"sharing": ["pairs"]}, "sharing"),
        ({"layer": FIELDS["layer"] | {"kv_heads": [1]}}, "layer.kv_heads"),
        ({"ranking": RANKING | {"table": ["16"]}}, "ranking.table"),
        ({"ranking": RANKING | {"bag": 0}}, "bag"),
        ({"ranking": RANKING | {"mixing": []}}, "ranking.mixing"),
        ({"image": {"size": 28, "classes": 10, "patch": [4]}}, "ranking"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        space_of(**changes)
    assert field in str(caught.value)
