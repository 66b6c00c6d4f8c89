"""A weight format for each layer: one word for each choice, old designs as they were, and which weight has which."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.api.testing.specs import toy_arch
from chipwise.core.digest import digest, plain
from chipwise.errors import SpecError, UnknownName
from chipwise.model.arch.design import Design
from chipwise.model.arch.ends import LmHead
from chipwise.model.arch.formats import WeightFormats, formats_word, read_formats
from chipwise.model.arch.layer import Layer
from chipwise.model.walk.weights import weight_shapes
from support.models import arch_specs

NAMES = st.sampled_from(("fp32", "int8", "int4"))


@given(st.lists(NAMES, min_size=1, max_size=5), NAMES)
def test_words_are_read_back_and_name_one_choice_each(layers: list[str], head: str) -> None:
    word = formats_word(layers, head)
    assert read_formats(word, len(layers)) == WeightFormats(layers=tuple(layers), head=head)
    assert (" " in word) == (len({*layers, head}) > 1)
    assert ("/" in word) == (len(set(layers)) > 1)


def test_where_all_agree_the_design_is_the_one_of_one_format() -> None:
    arch = toy_arch()
    spelt, plainly = Design(arch=arch, weights="int8/int8 head:int8"), Design(arch=arch, weights="int8")
    assert spelt == plainly
    assert spelt.digest == plainly.digest == digest([arch.digest, "int8"])
    assert plain(spelt)["weights"] == "int8"
    assert Design(arch=arch, weights="int4/int4 head:int8").weights == "int4 head:int8"


def test_identities_of_designs_that_exist_have_not_changed() -> None:
    """As computed before layers could differ."""
    assert [Design(arch=toy_arch(), weights=name).digest for name in ("fp32", "int8", "int4")] == [
        "fb3c92079c17ac4d",
        "aa6f512972d9e343",
        "eae4e495f7f6d51e",
    ]


def test_designs_that_differ_in_one_format_differ() -> None:
    words = ["int8", "int4", "int4/int8 head:int8", "int8/int4 head:int8", "int4/int8 head:int4", "int4 head:int8"]
    assert len({Design(arch=toy_arch(), weights=word).digest for word in words}) == len(words)


def test_which_weight_has_which_format() -> None:
    design = Design(arch=toy_arch(head=LmHead(tied=False)), weights="int4/int8 head:fp32")
    found = {name: design.format_of(name) for name in weight_shapes(design.arch)}
    assert {name for name, form in found.items() if form == "int4"} == {
        *(f"layers.0.attention.{part}.weight" for part in ("q", "k", "v", "out")),
        *(f"layers.0.ffn.{part}.weight" for part in ("gate", "up", "down")),
    }
    assert found["layers.1.ffn.down.weight"] == "int8"
    assert {found[name] for name in ("embedding.weight", "norm.weight", "layers.1.ffn_norm.weight")} == {"fp32"}
    assert found["head.weight"] == "fp32"


@given(arch_specs())
def test_of_one_format_exactly_the_matrices_of_layers_and_head_are_in_it(arch) -> None:
    design = Design(arch=arch, weights="int4")
    for name, shape in weight_shapes(arch).items():
        matrix = len(shape) == 2 and name.split(".")[0] in ("layers", "head")
        assert design.format_of(name) == ("int4" if matrix else "fp32"), name


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("int4/int8/int4/int8 head:int8", "formats for 4 layers; the model has 2"),
        ("int4/int4/int8 head:int8", "formats for 3 layers; the model has 2"),
    ],
)
def test_a_word_for_another_depth_is_refused(word: str, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        Design(arch=toy_arch(), weights=word)


@pytest.mark.parametrize("word", ["int5", "int4/int5 head:int8", "int4/int8", "int4/int8 head:", "/ head:int8"])
def test_an_unknown_format_is_refused(word: str) -> None:
    with pytest.raises(UnknownName):
        Design(arch=toy_arch(), weights=word)


def test_layers_that_share_weights_share_their_format() -> None:
    one = toy_arch().layers[0]
    arch = toy_arch(layers=(one, Layer(attention=one.attention, ffn=one.ffn, shares=0), dataclasses.replace(one)))
    assert Design(arch=arch, weights="int4/int4/int8 head:int8").formats.layers == ("int4", "int4", "int8")
    with pytest.raises(SpecError, match=r"layer 1 uses the weights of layer 0, so its format must be int4, not int8"):
        Design(arch=arch, weights="int4/int8/int8 head:int8")
