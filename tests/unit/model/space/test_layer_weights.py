"""A weight format for each layer as a choice: counted, tied, limited and shared as other choices of a layer are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from chipwise.core.digest import digest
from chipwise.core.files import build
from chipwise.errors import SpecError
from chipwise.model.space.designs import design_of, summary
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.tasks.references import llama_proportions

LAYER = {"heads": [2], "kv_heads": [1], "ffn": ["relu"], "ffn_width": [64, 96]}


def space(formats=("int8", "int4"), **changes) -> SearchSpace:
    data = {"d_model": [64], "depth": [1, 2, 3], "vocab_size": [512], "weights": ["fp32", "int8"]}
    layer = LAYER if formats is None else LAYER | {"weights": list(formats)}
    return SearchSpace(build(SpaceSpec, data | {"layer": layer} | changes))


def distinct(found: SearchSpace) -> set[str]:
    every = np.array(list(itertools.product(*(range(c) for c in found.cardinalities))))
    return {found.design(row).digest for row in np.unique(found.canonical(every), axis=0)}


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        # two widths and two formats a layer, and two formats of the head
        ({}, 2 * (4 + 4**2 + 4**3)),
        ({"layers": "alike"}, 2 * 3 * 4),
        ({"layers": {"layer_weights": "alike"}}, 2 * 2 * (2 + 2**2 + 2**3)),
        ({"layers": {"layer_weights": "alternating"}}, 2 * (2 * 2 + 2**2 * 4 + 2**3 * 4)),
        ({"sharing": ["none", "pairs"]}, 2 * (4 + 4**2 + 4**3 + 4 + 4**2)),
        ({"conditions": [{"when": {"layer": 0}, "only": {"layer_weights": "int8"}}]}, 2 * (2 + 2 * 4 + 2 * 4**2)),
        # int4 with the narrow width alone: three of four choices of a layer are left
        ({"conditions": [{"when": {"layer_weights": "int4"}, "only": {"ffn_width": 64}}]}, 2 * (3 + 3**2 + 3**3)),
        # an fp32 head with int8 layers alone
        ({"conditions": [{"when": {"weights": "fp32"}, "only": {"layer_weights": "int8"}}]}, 14 + 4 + 4**2 + 4**3),
    ],
)
def test_every_design_is_counted_once(changes, size) -> None:
    found = space(**changes)
    assert found.size() == size
    assert len(distinct(found)) == size


def test_without_formats_of_their_own_layers_follow_the_whole_models() -> None:
    found = space(None)
    for row in found.sample(20, np.random.default_rng(0)):
        design = found.design(row)
        assert design.weights == found.choices(row)["weights"]
        assert set(design.formats.layers) == {design.formats.head}
        assert "weights" not in found.choices(row)["layers"][0]


def test_spaces_that_exist_are_the_same() -> None:
    """Identity as computed before layers could have formats, and the names of the choices."""
    found = space(None)
    assert digest(found.spec) == "4f4bc956cbc551d3"
    assert [gene.label for gene in found.genes[7:10]] == ["layer0.attention", "layer0.ffn", "layer0.ffn_width"]
    assert len(found.genes) == 7 + 3 * 3


def test_the_global_choice_is_then_the_heads() -> None:
    found = space(sharing=["none", "pairs"])
    for row in found.sample(100, np.random.default_rng(0)):
        choices, formats = found.choices(row), found.design(row).formats
        assert formats.head == choices["weights"]
        assert formats.layers == tuple(layer["weights"] for layer in choices["layers"])
        if choices["sharing"] == "pairs":
            assert formats.layers[1::2] == formats.layers[: 2 * (len(formats.layers) // 2) : 2]
        assert (found.row(choices) == row).all()
        assert (found.nearest(choices) == row).all()


def test_a_design_drawn_by_hand_without_them_is_nearest_to_layers_of_its_own_format() -> None:
    found = space()
    row = found.sample(1, np.random.default_rng(0))[0]
    choices = found.choices(row) | {"weights": "int8"}
    plain = choices | {"layers": [{k: v for k, v in layer.items() if k != "weights"} for layer in choices["layers"]]}
    assert design_of(plain, spec=found.spec).weights == "int8"
    assert found.design(found.nearest(plain)).weights == "int8"


def test_what_is_drawn_by_hand_has_one_format_of_any_that_may_occur() -> None:
    found = space(("int4", "int8"), d_model=[128])
    drawn = {design_of(choices, spec=found.spec).weights for choices in llama_proportions(found.spec)}
    assert drawn == {"fp32", "int8", "int4"}


def test_a_line_and_the_labels_show_them() -> None:
    found = space(depth=[3])
    row = found.sample(1, np.random.default_rng(0))[0]
    labels = [gene.label for gene in found.genes if gene.name == "layer_weights"]
    assert labels == ["layer0.weights", "layer1.weights", "layer2.weights"]
    row[[i for i, gene in enumerate(found.genes) if gene.name == "layer_weights"]] = [1, 0, 1]
    row[found.index["weights"]] = 1
    assert summary(found.design(row)).endswith("tied int4/int8/int4 head:int8")


@pytest.mark.parametrize(
    ("formats", "changes", "field"),
    [
        (["int5"], {}, "layer.weights"),
        ([], {}, "layer.weights"),
        (["int8", "int8"], {}, "layer.weights"),
        (None, {"layers": {"layer_weights": "alike"}}, "layers.layer_weights"),
        (
            None,
            {"conditions": [{"when": {"layer": 0}, "only": {"layer_weights": "int8"}}]},
            "conditions[0].only.layer_weights",
        ),
        (
            ["int8"],
            {"conditions": [{"when": {"layer_weights": "int4"}, "only": {"depth": 1}}]},
            "conditions[0].when.layer_weights",
        ),
        (
            ["int8", "int4"],
            {"conditions": [{"when": {"layer_weights": "int4"}, "only": {"depth": 1}}]},
            "conditions[0].only.depth",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_field(formats, changes, field) -> None:
    with pytest.raises(SpecError) as error:
        space(formats, **changes)
    assert error.value.field == field
