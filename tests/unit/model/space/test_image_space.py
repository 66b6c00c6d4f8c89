"""Spaces of image classifiers: every row is a design, prices of blocks add up to those of whole models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chipwise.core.fields import build
from chipwise.errors import SpecError
from chipwise.model.kinds.image.choices import ImageSpace
from chipwise.model.kinds.image.form import CLASSIFIER
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.space.designs import summary
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.model.walk.lower import lower
from chipwise.predict.cost.terms import terms
from support.space_suite import SpaceSuite

IMAGE: dict[str, Any] = {
    "size": 28,
    "classes": 10,
    "patch": [2, 7, 14],
    "stem": ["patches", "conv8"],
    "pooling": ["first", "mean"],
}
FIELDS: dict[str, Any] = {
    "image": IMAGE,
    "d_model": [32, 64],
    "depth": [1, 3],
    "head_size": [16, 32],
    "weights": ["fp32", "int8"],
    "norm": "layernorm",
    "layers": "alike",
    "layer": {"heads": [1, 2], "ffn": ["gelu", "swiglu"], "ffn_width": [64, 96]},
}


EACH: dict[str, Any] = {
    "image": IMAGE | {"patch": [4, 7, 14], "positions": ["learned", "relative"]},
    "layers": {"attention": "each", "ffn": "alike", "ffn_width": "alike"},
}


ASKED: dict[str, Any] = {
    "image": {
        "size": 24, "channels": 3, "classes": 14, "question": 7, "words": 40, "patch": [4, 8],
        "stem": ["patches", "conv8"], "merge": ["none", "mean", "join"], "image_in": ["prefix", "cross"],
    },
    "layers": "each",
}  # fmt: skip


def space_of(**changes: Any) -> SearchSpace:
    return SearchSpace(build(SpaceSpec, FIELDS | changes))


class TestImageSpaces(SpaceSuite):
    """Layers alike, layers that choose their heads, and questions about images."""

    def spaces(self) -> dict[str, SpaceSpec]:
        return {name: space_of(**changes).spec for name, changes in {"alike": {}, "each": EACH, "asked": ASKED}.items()}


def test_models_have_the_classes_of_the_space() -> None:
    space = space_of()
    assert {space.design(row).arch.outputs for row in space.sample(80, np.random.default_rng(1))} == {10}


def test_what_cannot_go_together_is_never_drawn() -> None:
    """Patches of 7 cannot be halved."""
    space = space_of()
    for row in space.sample(200, np.random.default_rng(2)):
        chosen = space.choices(row)
        assert chosen["patch"] != 7 or chosen["stem"] == "patches"


def test_images_stand_before_words_or_are_seen_by_cross_attention() -> None:
    """Nine tokens of 24 pixels in patches of 8: 16 positions in the layers, or the 7 words; 16 in the table."""
    space = space_of(**ASKED)
    for row in space.sample(40, np.random.default_rng(6)):
        chosen, arch = space.choices(row), space.design(row).arch
        assert CLASSIFIER.builds(arch)
        assert arch.crosses == (chosen["image_in"] == "cross")
        assert all((layer.cross is not None) == arch.crosses for layer in arch.layers)
        assert ("cross" in summary(space.design(row))) == arch.crosses
        if chosen["patch"] == 8 and chosen["merge"] == "none":
            assert (arch.max_tokens, arch.request_tokens) == (16, 7 if arch.crosses else 16)
        np.testing.assert_array_equal(space.row(chosen), row)


def test_what_a_cross_design_costs_and_holds_by_pencil() -> None:
    """One layer of width 32, a head of 16; 36 image tokens and 7 words, after whose attention only the last is needed.

    Cross-attention: 32 to 16 of the word, 32 to 32 of 36 tokens, 16 scores of 36, 16 to 32; biases 16 + 32 + 32;
    a norm of the image and one of the words.
    """
    space = space_of(**ASKED)
    layer = {"heads": 1, "kv_heads": 1, "square": "none", "ffn": "gelu", "ffn_width": 64}
    rest = {"d_model": 32, "depth": 1, "vocab_size": 14, "head_size": 16, "tie_embeddings": False, "weights": "fp32"}
    rest |= {"sharing": "none", "patch": 4, "stem": "patches", "pooling": "last", "merge": "none", "layers": [layer]}
    prefix, cross = (space.design(space.row(rest | {"image_in": way})) for way in ("prefix", "cross"))
    assert cross.arch.parameters() - prefix.arch.parameters() == 4 * 32 * 16 + 16 + 32 + 32 + 2 * 2 * 32
    ops = {placed.place: placed.op for placed in lower(cross, Workload(batch=3), Phase.PREFILL)}
    assert (ops["layers.0.attention.qkv"].m, ops["layers.0.attention.out"].m) == (3 * 7, 3)
    found = [(op.m, op.k, op.n) for name in ("q", "kv", "out") if (op := ops[f"layers.0.cross.{name}"])]
    assert found == [(3, 32, 16), (3 * 36, 32, 32), (3, 16, 32)]
    attend = ops["layers.0.cross.attend"]
    assert attend.pairs() == 36
    assert attend.work().flops == 3 * 36 * (4 * 16 + 5)
    amounts = terms(attend)[0].amounts
    assert terms(attend)[0].model == "attention.full"
    assert (amounts["score"], amounts["product"], amounts["value"]) == (3 * 36, 3 * 36 * 16, 3 * (1 + 2 * 36) * 16)
    before = {placed.place: placed.op for placed in lower(prefix, Workload(batch=3), Phase.PREFILL)}
    assert before["layers.0.attention.qkv"].m == 3 * 43


def test_the_number_of_designs_by_pencil() -> None:
    """Patch, stem and pooling together: 2 has 2·2, 7 has 2, 14 has 2·2; the rest 2·2·2·2 and 2·2·2."""
    assert space_of().size() == (4 + 2 + 4) * 16 * 8


def test_biases_fit_the_image() -> None:
    space = space_of(**EACH)
    for row in space.sample(100, np.random.default_rng(4)):
        chosen, arch = space.choices(row), space.design(row).arch
        assert CLASSIFIER.builds(arch)
        relative = chosen["positions"] == "relative"
        assert arch.positions == ("none" if relative else "learned")
        rows = (2 * 28 // chosen["patch"] - 1) ** 2 + 3 * (chosen["pooling"] == "first") if relative else 0
        assert {layer.attention.relative_buckets for layer in arch.layers if layer.attention} == {rows}


def test_layers_of_earlier_runs_are_read_and_their_windows_refused() -> None:
    """Runs have stored ``square: none`` with every layer; where it named windows, the space says that they went."""
    space = space_of(image=IMAGE | {"square": ["none"]})
    row = space.sample(1, np.random.default_rng(5))[0]
    stored = space.choices(row)
    assert all(layer["square"] == "none" for layer in stored["layers"])
    without = [{name: value for name, value in layer.items() if name != "square"} for layer in stored["layers"]]
    np.testing.assert_array_equal(space.row({**stored, "layers": without}), row)
    with pytest.raises(SpecError, match=r"image\.square: attention within windows of patches is no longer part"):
        space_of(image=IMAGE | {"square": ["none", "7x7"]})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"vocab_size": [256]}, "vocab_size"),
        ({"sharing": ["pairs"]}, "sharing"),
        ({"layer": FIELDS["layer"] | {"kv_heads": [1]}}, "layer.kv_heads"),
        ({"image": IMAGE | {"patch": [5]}}, "image.patch"),
        ({"image": IMAGE | {"stem": ["resnet"]}}, "image.stem"),
        ({"image": IMAGE | {"patch": []}}, "image.patch"),
        ({"image": IMAGE | {"image_in": ["cross"]}}, "image.question"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        space_of(**changes)
    assert field in str(caught.value)


def test_a_space_of_text_needs_a_vocabulary_and_kv_heads() -> None:
    text = {name: value for name, value in FIELDS.items() if name != "image"}
    with pytest.raises(SpecError, match="vocab_size"):
        build(SpaceSpec, text)
    with pytest.raises(SpecError, match="kv_heads"):
        build(SpaceSpec, text | {"vocab_size": [256]})


def test_signals_have_one_axis_in_spaces_too() -> None:
    """28 frames of 5 bands in slices of 14 are two positions; a convolution halves the frames alone."""
    signal = {**IMAGE, "axes": 1, "channels": 5}
    spec = build(SpaceSpec, {**FIELDS, "image": signal})
    space = SearchSpace(spec)
    for row in space.sample(20, np.random.default_rng(0)):
        arch = space.design(row).arch
        assert CLASSIFIER.builds(arch)
        assert not arch.reads_tokens
        assert arch.stem.shape == (5, 28)
        assert arch.stem.patches == 28 // arch.stem.patch
    relative = SearchSpace(build(SpaceSpec, {**FIELDS, "image": {**signal, "positions": ["relative"]}}))
    assert CLASSIFIER.builds(relative.design(relative.sample(1, np.random.default_rng(0))[0]).arch)
    with pytest.raises(SpecError, match="must be 2"):
        build(SpaceSpec, {**FIELDS, "image": {**signal, "axes": 3}})


DRAWN: dict[str, Any] = {"size": 28, "classes": 10, "patch": [4, 7], "steps": [1, 4]}


@pytest.mark.parametrize(
    ("taken", "refused", "field"),
    [
        ({"steps": [1]}, {"steps": [4, 0]}, "steps"),
        ({"guidance": [1, 100]}, {"guidance": [1, 0.9]}, "guidance"),
        ({"guidance": [1, 100]}, {"guidance": [1, 100.1]}, "guidance"),
        ({"shift": [0.01, 100]}, {"shift": [1, 0.009]}, "shift"),
        ({"shift": [0.01, 100]}, {"shift": [1, 100.1]}, "shift"),
        ({"latents": [1, 2, 4]}, {"latents": [1, 3]}, "latents"),
        ({"latents": [2]}, {"square": ["none", "7x7"]}, "square"),
        ({"training": ["flow"]}, {"training": ["flow", "shortcut"]}, "training"),
        ({"solver": ["multistep"], "shift": [2], "guidance": [2]}, {"stem": ["conv8"]}, "stem"),
        ({"training": ["flow"]}, {"positions": ["relative"]}, "positions"),
    ],
)
def test_what_a_denoiser_may_be_and_what_lies_just_beyond(
    taken: dict[str, Any], refused: dict[str, Any], field: str
) -> None:
    found = build(ImageSpace, DRAWN | taken)
    assert found.pooling == ("mean",)
    with pytest.raises(SpecError) as caught:
        build(ImageSpace, DRAWN | refused)
    assert caught.value.field == field


@pytest.mark.parametrize("name", ["training", "latents", "guidance", "solver", "shift"])
def test_what_is_of_denoisers_is_refused_of_classifiers(name: str) -> None:
    other = {"training": "shortcut", "latents": 2, "guidance": 2, "solver": "multistep", "shift": 2}
    plain = {key: value for key, value in DRAWN.items() if key != "steps"}
    build(ImageSpace, plain)
    with pytest.raises(SpecError, match=f"{name}: only valid for denoisers"):
        build(ImageSpace, plain | {name: [other[name]]})
