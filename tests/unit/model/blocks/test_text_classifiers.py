"""Classifiers of texts: all forms agree; parameters by pencil; a transformers folder gives the same logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import strategies as st

from chipwise.deploy.export.hf import save_pretrained
from chipwise.deploy.export.onnx import random_weights
from chipwise.deploy.export.parity import transformers_parity
from chipwise.errors import SpecError, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.io import from_data, to_data
from chipwise.model.kinds.sentence.choices import SentenceSpace
from chipwise.model.kinds.sentence.form import SENTENCES
from chipwise.model.space.designs import summary
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import LayerSpace, SpaceSpec
from chipwise.model.walk.slicing import cuts
from support.archs import sentence_archs
from support.form_suite import FormSuite
from support.space_suite import SpaceSuite


def spec(**changes: object) -> SpaceSpec:
    """Texts of 6 of 20 words in 3 classes; widths 8 and 16."""
    sizes = {"size": 6, "words": 20, "classes": 3, "table": ("full", "w4"), **changes}
    layer = LayerSpace(heads=(1, 2), ffn=("gelu", "swiglu"), ffn_width=(8, 20))
    return SpaceSpec(
        d_model=(8, 16),
        depth=(1, 2),
        head_size=(8,),
        layer=layer,
        norm="layernorm",
        weights=("fp32", "int8"),
        sentence=SentenceSpace(**sizes),  # type: ignore[arg-type]
    )


def classifier(**changes: object) -> ArchSpec:
    """The first design: width 8, one layer of a head and a GELU feed-forward of 8, a full table."""
    space = SearchSpace(spec(**changes))
    return space.design([0] * len(space.genes)).arch


class TestTextClassifiers(FormSuite):
    """Any small classifier of the space."""

    def archs(self) -> st.SearchStrategy[ArchSpec]:
        return sentence_archs()


class TestSpacesOfTextClassifiers(SpaceSuite):
    """Full and narrow tables."""

    def spaces(self) -> dict[str, SpaceSpec]:
        return {"alike": spec()}


def test_parameters_by_pencil() -> None:
    """Table 20 · 8, positions 6 · 8, attention 4 (64 + 8), FFN 2 · 64 + 16, three norms of 16, head 3 · 9."""
    assert classifier().parameters() == 160 + 48 + 288 + 144 + 48 + 27


def test_a_narrow_table_has_a_matrix() -> None:
    """20 rows of 4 values and 4 · 8 in place of 160."""
    assert classifier(table=("w4",)).parameters() == classifier().parameters() - 160 + 80 + 32


def test_summary_says_words_and_table() -> None:
    """The line that designs are compared by."""
    assert summary(Design(arch=classifier())) == "6 words full d8 L1 h1x8 gelu:8 fp32"


def test_a_spec_file_round_trips() -> None:
    """With its stem."""
    assert from_data(to_data(classifier())) == classifier()


def test_what_is_not_built_is_said() -> None:
    """Other positions are refused by name."""
    with pytest.raises(Unsupported, match="positions = 'none' is not supported for texts"):
        SENTENCES.require(replace(classifier(), positions="none"), work="exported")


@pytest.mark.parametrize("changes", [{"table": ("16",)}, {"words": 2}, {"size": 0}])
def test_bad_spaces_are_refused(changes: dict[str, object]) -> None:
    """Each in one line."""
    with pytest.raises(SpecError):
        spec(**changes)


def test_no_weights_are_cut_from_a_model_of_other_words() -> None:
    """A word's row stands where the table says."""
    with pytest.raises(SpecError, match="same text length and vocabulary"):
        cuts(classifier(), classifier(words=21))


def test_transformers_gives_the_same_logits(tmp_path: Path) -> None:
    """The modelling file beside the weights, loaded by transformers."""
    pytest.importorskip("transformers")
    arch = classifier(table=("w4",))
    weights = random_weights(arch, seed=0)
    save_pretrained(arch, weights, None, tmp_path)
    assert transformers_parity(tmp_path, arch, weights).greatest < 1e-5
