"""Spaces of decoders whose layers may lack attention or a feed-forward, and so of every order of the two."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chipwise.core.fields import build
from chipwise.deploy.export.gguf import layout
from chipwise.design.prices import lookup
from chipwise.errors import SpecError, Unsupported
from chipwise.model.space.designs import summary
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import SpaceSpec
from support.space_suite import SpaceSuite, check_prices

LAYER: dict[str, Any] = {
    "heads": [2, "none", 4],
    "kv_heads": [1, 2],
    "ffn": ["none", "relu", "swiglu"],
    "ffn_width": [32, 80],
}
FIELDS: dict[str, Any] = {"d_model": [64, 96], "depth": [1, 2, 3, 5], "vocab_size": [256], "head_size": [16]}


def spec_of(layer: dict[str, Any] | None = None, **changes: Any) -> SpaceSpec:
    return build(SpaceSpec, FIELDS | {"layer": LAYER | (layer or {})} | changes)


SPACES = {
    "each": spec_of(),
    "enumerated": spec_of({"kv_heads": [2]}, depth=[1, 2]),
    "always a feed-forward": spec_of({"ffn": ["relu"]}, layers={"attention": "thirds"}),
    "always attention": spec_of({"heads": [2]}, sharing=["none", "pairs"]),
    "thirds": spec_of(layers="thirds", sharing=["none", "pairs"], tie_embeddings=[True, False]),
    "formats": spec_of({"weights": ["fp32", "int8"]}, layers="alternating", weights=["int8", "fp32"]),
}


class TestMissingBlocks(SpaceSuite):
    def spaces(self) -> dict[str, SpaceSpec]:
        return SPACES


def test_large_spaces_are_priced_by_two_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "_FUSED_BYTES", 0)
    for spec in SPACES.values():
        check_prices(SearchSpace(spec), draws=30, batch=1)


def test_the_number_of_designs_by_hand() -> None:
    """Two pairs of heads with no feed-forward or one of four; after the first layer also one of four alone."""
    first = 2 * (1 + 4)
    assert SearchSpace(spec_of({"kv_heads": [2]}, depth=[1, 2])).size() == 2 * (first + first * (first + 4))


def test_a_sandwich_is_a_design() -> None:
    """Press et al. 2020, arXiv:1911.03864: attention first, pairs, then feed-forwards; here s s sf f f as layers."""
    space = SearchSpace(spec_of())
    heads, none = {"heads": 4, "kv_heads": 1}, {"heads": "none", "kv_heads": "none"}
    feed, nothing = {"ffn": "swiglu", "ffn_width": 80}, {"ffn": "none", "ffn_width": 32}
    layers = [heads | nothing, heads | nothing, heads | feed, none | feed, none | feed]
    drawn = space.choices(space.sample(1, np.random.default_rng(0))[0])
    row = space.row(drawn | {"d_model": 64, "depth": 5, "layers": layers})
    design = space.design(row)
    order = "".join("s" * (layer.attention is not None) + "f" * (layer.ffn is not None) for layer in design.arch.layers)
    assert order == "sssfff"
    assert "h4/1x3-nonex2 nonex2-swiglu:80x3" in summary(design)
    assert (space.nearest(space.choices(row)) == row).all()
    with pytest.raises(Unsupported, match=r"not followed by a feed-forward.*ONNX and Hugging Face files hold it"):
        layout(design.arch)


def test_nearest_of_a_dense_design_has_both_blocks() -> None:
    space = SearchSpace(spec_of())
    layer = {"heads": 3, "kv_heads": 3, "ffn": "swiglu", "ffn_width": 79}
    drawn = space.choices(space.sample(1, np.random.default_rng(0))[0])
    near = space.choices(space.nearest(drawn | {"depth": 2, "layers": [layer, layer]}))
    assert near["layers"] == [{"heads": 4, "kv_heads": 2, "ffn": "swiglu", "ffn_width": 80}] * 2


@pytest.mark.parametrize(
    ("layer", "changes", "message"),
    [
        ({"heads": ["none"]}, {}, "layer.kv_heads: no pair fits"),
        ({}, {"layers": "alike"}, "layer.heads: the first layer has attention"),
        ({}, {"layers": {"attention": "thirds"}}, "layers: attention and ffn .* must be tied alike"),
        ({}, {"conv": ["none", "both"]}, "conv: convolutions need layers that all have both blocks"),
        ({"heads": ["some"]}, {}, r"layer.heads\[0\]: must be a whole number"),
    ],
)
def test_what_cannot_be_is_refused(layer: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        SearchSpace(spec_of(layer, **changes))


@pytest.mark.parametrize("layer", [{"heads": [2, "none"], "ffn": ["relu"]}, {"heads": [2], "ffn": ["relu", "none"]}])
def test_layers_of_classifiers_have_both_blocks(layer: dict[str, Any]) -> None:
    image = {"size": 28, "classes": 10, "patch": [7]}
    with pytest.raises(SpecError, match="image classifiers have no layers without"):
        build(SpaceSpec, {"d_model": [32], "depth": [1], "layer": layer | {"ffn_width": [64]}, "image": image})
