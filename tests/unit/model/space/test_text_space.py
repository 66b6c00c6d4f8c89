"""Spaces of decoders whose layers may lack a block, and so of every order of the two, and with several norms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from chipwise.core.fields import build
from chipwise.deploy.export.gguf import layout
from chipwise.design.prices import lookup
from chipwise.design.shrink.sizes import whole_sizes
from chipwise.errors import SpecError, Unsupported
from chipwise.model.blocks.ffn.module import FeedForwardModule
from chipwise.model.kinds.text.module import Transformer
from chipwise.model.space.designs import summary
from chipwise.model.space.search_space import SearchSpace, _as_wide
from chipwise.model.space.space_spec import SpaceSpec, ffn_block
from chipwise.training.supernet.sliced import extract, part_of, with_weights
from chipwise.training.supernet.whole import whole_of
from support.block_suite import random_tokens, shaken
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
    "grouped": spec_of({"ffn": ["swiglu-g2", "none", "relu-g4", "swiglu"]}, sharing=["none", "pairs"]),
    "formats": spec_of({"weights": ["fp32", "int8"]}, layers="alternating", weights=["int8", "fp32"]),
}

NORMS: dict[str, Any] = {"norm": ["layernorm", "rmsnorm"], "norm_place": ["post", "both", "pre"]}
BOTH: dict[str, Any] = {"heads": [2, 4], "ffn": ["relu", "swiglu"]}
NORMED = {
    "norms": spec_of(BOTH, sharing=["none", "pairs"], weights=["fp32", "int8"], **NORMS),
    "enumerated": spec_of(BOTH | {"heads": [2]}, depth=[1, 2], **NORMS),
    "places": spec_of(BOTH, norm_place=["pre", "both"], conv=["none", "both"]),
    "norms and missing blocks": spec_of(norm="layernorm", norm_place=["pre", "post"], layers="thirds"),
    "one place": spec_of(BOTH, norm_place=["post"]),
}


class TestMissingBlocks(SpaceSuite):
    def spaces(self) -> dict[str, SpaceSpec]:
        return SPACES


class TestNorms(SpaceSuite):
    def spaces(self) -> dict[str, SpaceSpec]:
        return NORMED


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
    with pytest.raises(
        Unsupported, match=r"not followed by a feed-forward.*write ONNX or a Hugging Face folder instead"
    ):
        layout(design.arch)


def test_layers_that_lack_a_block_share_the_weights_of_whole_layers() -> None:
    """Every design computes the same on views of shared weights as on copies of its part."""
    archs = [design.arch for design in SearchSpace(SPACES["thirds"]).drawn(6, 0)]
    whole = whole_of(archs)
    assert any(None in (layer.attention, layer.ffn) for arch in archs for layer in arch.layers)
    weights = dict(shaken(whole, seed=0).state_dict())
    for arch in archs:
        alone, tokens = Transformer(arch), random_tokens(arch, length=9)
        alone.load_state_dict(extract(arch, whole, weights))
        with torch.no_grad():
            shared = with_weights(arch, part_of(arch, whole, weights), lambda model, given=tokens: model(given)[0])
            torch.testing.assert_close(shared, alone(tokens)[0])


def test_nearest_of_a_dense_design_has_both_blocks() -> None:
    space = SearchSpace(spec_of())
    layer = {"heads": 3, "kv_heads": 3, "ffn": "swiglu", "ffn_width": 79}
    drawn = space.choices(space.sample(1, np.random.default_rng(0))[0])
    near = space.choices(space.nearest(drawn | {"depth": 2, "layers": [layer, layer]}))
    assert near["layers"] == [{"heads": 4, "kv_heads": 2, "ffn": "swiglu", "ffn_width": 80}] * 2


def test_groups_divide_the_weights_of_a_feed_forward() -> None:
    """Three matrices of 64 x 80 values, in four blocks of 16 x 20 each; a block reads and writes its own channels."""
    block = ffn_block("swiglu-g4", 80)
    assert block.parameters(64) == 3 * 4 * 16 * 20 == ffn_block("swiglu", 80).parameters(64) // 4
    module = FeedForwardModule(block, 64)
    x_BTD = torch.randn(1, 3, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = module(x_BTD)
        x_BTD[..., 16:32] += 1.0
        changed = (module(x_BTD) != before).any(dim=1).flatten()
    assert changed.tolist() == [16 <= i < 32 for i in range(64)]
    design = SearchSpace(spec_of({"heads": [2], "ffn": ["swiglu-g4"]}, depth=[1])).drawn(1, 0)[0]
    assert "swiglu-g4:" in summary(design)
    with pytest.raises(Unsupported, match=r"no grouped feed-forwards.*write ONNX or a Hugging Face"):
        layout(design.arch)
    with pytest.raises(Unsupported, match="grouped feed-forwards cannot be cut"):
        whole_sizes(design.arch)


@pytest.mark.parametrize(
    ("layer", "changes", "message"),
    [
        ({"ffn": ["swiglu-g8"], "ffn_width": [80, 84]}, {}, "layer.ffn_width: swiglu-g8: 8 groups do not divide 84"),
        ({"ffn": ["swiglu-g8"]}, {"d_model": [64, 100]}, "d_model: swiglu-g8: 8 groups do not divide 100"),
        ({"heads": ["none"]}, {}, "layer.kv_heads: no combination is possible"),
        ({}, {"layers": "alike"}, "layer.heads: the first layer needs attention"),
        ({}, {"layers": {"attention": "thirds"}}, "layers: attention and ffn .* must be the same for both"),
        ({}, {"conv": ["none", "both"]}, "conv: convolutions need layers with both blocks"),
        ({"heads": ["some"]}, {}, r"layer.heads\[0\]: must be a whole number"),
    ],
)
def test_what_cannot_be_is_refused(layer: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        SearchSpace(spec_of(layer, **changes))


@pytest.mark.parametrize("layer", [{"heads": [2, "none"], "ffn": ["relu"]}, {"heads": [2], "ffn": ["relu", "none"]}])
def test_layers_of_classifiers_have_both_blocks(layer: dict[str, Any]) -> None:
    image = {"size": 28, "classes": 10, "patch": [7]}
    with pytest.raises(SpecError, match="image classifiers cannot have layers without"):
        build(SpaceSpec, {"d_model": [32], "depth": [1], "layer": layer | {"ffn_width": [64]}, "image": image})


def test_norms_are_choices_of_the_whole_model() -> None:
    """Two kinds in three places are six times as many designs, and the line of a design names what is unusual."""
    assert SearchSpace(spec_of(BOTH, **NORMS)).size() == 6 * SearchSpace(spec_of(BOTH)).size()
    space = SearchSpace(spec_of(BOTH, **NORMS))
    design = space.design(space.row(space.choices(np.zeros(len(space.genes), int)) | {"norm_place": "both"}))
    assert (design.arch.norm, design.arch.norm_place, design.arch.final_norm) == ("layernorm", "both", True)
    assert "layernorm norm:both" in summary(design)
    with pytest.raises(Unsupported, match=r"no norm: layernorm; no norm_place: both.*write ONNX or a Hugging Face"):
        layout(design.arch)


def test_a_reference_design_has_the_usual_norm_of_the_space() -> None:
    """Designs that name no norm have RMSNorm before blocks, where the space lists them."""
    for changes, norm, place in (
        (NORMS, "rmsnorm", "pre"),
        ({"norm": "layernorm", "norm_place": ["both", "post"]}, "layernorm", "both"),
    ):
        space = SearchSpace(spec_of(BOTH, **changes))
        choices = space.choices(np.zeros(len(space.genes), int))
        bare = {name: value for name, value in choices.items() if name not in ("norm", "norm_place")}
        for found in (space.design(space.nearest(bare)), space.design(space.row(bare))):
            assert (found.arch.norm, found.arch.norm_place) == (norm, place)


def test_norms_after_blocks_add_no_norm_before_the_head() -> None:
    """Per block one norm (pre, post) or two (both) of d values; pre and both have one more before the head."""
    found = {}
    for place in NORMS["norm_place"]:
        space = SearchSpace(spec_of(BOTH, depth=[3], norm_place=[place]))
        found[place] = space.design(np.zeros(len(space.genes), int)).arch.parameters()
    assert found["pre"] - found["post"] == 64
    assert found["both"] - found["pre"] == 2 * 3 * 64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm": ["layernorm", "layernorm"]}, "norm: a value is listed twice"),
        ({"norm": []}, "norm: the list is empty"),
        ({"norm": "batchnorm"}, "norm: 'batchnorm' is not an accepted value"),
        ({"norm_place": "pre"}, "norm_place: must be a list"),
        ({"norm_place": ["sandwich"]}, r"norm_place\[0\]: 'sandwich' is not an accepted value"),
    ],
)
def test_unknown_norms_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        spec_of(BOTH, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm": ["layernorm", "rmsnorm"]}, "norm: image classifiers cannot have several norms"),
        ({"norm_place": ["post"]}, "norm_place: is not possible for"),
    ],
)
def test_classifiers_have_one_kind_of_norm_before_blocks(changes: dict[str, Any], message: str) -> None:
    image = {"size": 28, "classes": 10, "patch": [7]}
    layer = {"heads": [2], "ffn_width": [64]}
    with pytest.raises(SpecError, match=message):
        build(SpaceSpec, {"d_model": [32], "depth": [1], "layer": layer, "image": image} | changes)


def test_nearest_of_a_design_with_larger_heads_has_more_of_them() -> None:
    """Two heads of 64 are as wide as four of 32."""
    space = SearchSpace(spec_of({"heads": [2, "none", 4, 8], "kv_heads": [1, 2, 4]}, head_size=[32]))
    drawn = space.choices(space.sample(1, np.random.default_rng(0))[0])
    layer = {"heads": 2, "kv_heads": 1, "ffn": "swiglu", "ffn_width": 128}
    for size, heads in ((64, (4, 2)), (32, (2, 1)), (128, (8, 4))):
        near = space.choices(space.nearest(drawn | {"head_size": size, "layers": [layer] * drawn["depth"]}))
        assert {(one["heads"], one["kv_heads"]) for one in near["layers"]} == {heads}
    assert _as_wide({"heads": "none", "kv_heads": 1}, 2.0)["heads"] == "none"
