import itertools

import numpy as np
import pytest

from chipwise.core.files import build
from chipwise.errors import SpecError
from chipwise.model.space.count import show_size
from chipwise.model.space.designs import summary
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import LayerSpace, SpaceSpec


def small(**changes):
    data = {
        "d_model": [64, 128],
        "depth": [1, 2, 3],
        "vocab_size": [512],
        "layer": {"heads": [2, 4], "kv_heads": [1, 4], "ffn": ["relu", "swiglu"], "ffn_width": [64, 96]},
        "weights": ["fp32", "int8"],
    }
    return SearchSpace(build(SpaceSpec, data | changes))


def test_size_counts_distinct_designs() -> None:
    # pairs (heads, kv): (2,1) (4,1) (4,4); a layer has 3·2·2 = 12 choices; two widths and two formats
    assert small().size() == 2 * 2 * (12 + 12**2 + 12**3)
    # with pairs, layer 1 repeats layer 0: one free layer of two, two of three; one layer has nobody to share with
    assert small(sharing=["none", "pairs"]).size() == 2 * 2 * ((12 + 12**2 + 12**3) + (12 + 12**2))
    assert small(layers="alike").size() == 2 * 2 * 3 * 12


def test_enumerating_a_small_space_gives_its_size() -> None:
    space = small(depth=[1, 2], sharing=["none", "pairs"], weights=["fp32"])
    every = np.array(list(itertools.product(*(range(c) for c in space.cardinalities))))
    rows = np.unique(space.canonical(every), axis=0)
    assert len(rows) == space.size()
    assert len({space.design(row).digest for row in rows}) == space.size()


def test_rows_and_choices_are_inverse() -> None:
    space = small(sharing=["none", "pairs"], tie_embeddings=[True, False])
    for row in space.sample(200, np.random.default_rng(0)):
        assert (space.row(space.choices(row)) == row).all()


def test_sharing_pairs_share_weights() -> None:
    space = small(sharing=["pairs"], depth=[3])
    design = space.design(space.sample(1, np.random.default_rng(1))[0])
    assert [layer.shares for layer in design.arch.layers] == [None, 0, None]
    assert "shared" in summary(design)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"d_model": []}, "d_model"),
        ({"depth": [0]}, "depth"),
        ({"d_model": [64, 64]}, "d_model"),
        ({"weights": ["int5"]}, "weights"),
        ({"head_size": [33]}, "head_size"),
        ({"layer": {"heads": [2], "kv_heads": [3], "ffn_width": [64]}}, "layer.kv_heads"),
        ({"depth": [129]}, "depth"),
        ({"depth": [10**5000]}, "depth"),
        ({"d_model": list(range(1, 1002))}, "d_model"),
        ({"d_model": [10**10]}, "d_model"),
        ({"d_model": list(range(1, 1001)), "head_size": list(range(2, 200, 2))}, None),  # too many blocks to price
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_what_cannot_be_is_refused_by_field(changes, field) -> None:
    with pytest.raises(SpecError) as error:
        small(**changes)
    assert error.value.field == field


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": 64}, "d_model: must be a list, not a whole number"),
        ({"d_model": ("64",)}, r"d_model\[0\]: must be a whole number, not text"),
        ({"depth": (1.5,)}, r"depth\[0\]: must be a whole number, not a number"),
        ({"layer": "swiglu"}, "layer: must be a mapping"),
        ({"tie_embeddings": (1,)}, r"tie_embeddings\[0\]: must be true or false"),
    ],
)
def test_wrong_types_are_refused_in_python_as_in_files(changes, message) -> None:
    layer = LayerSpace(heads=(2,), kv_heads=(1,), ffn_width=(64,))
    good = {"d_model": (64,), "depth": (1,), "vocab_size": (512,), "layer": layer}
    assert SearchSpace(SpaceSpec(**good)).size() == 1
    assert SpaceSpec(**good | {"d_model": [64]}) == SpaceSpec(**good)
    with pytest.raises(SpecError, match=message):
        SpaceSpec(**good | changes)
    with pytest.raises(SpecError, match=r"made from a SpaceSpec, not a mapping"):
        SearchSpace(good)


def test_sizes_are_shown_however_large() -> None:
    assert show_size(999_999_999) == "999,999,999"
    assert show_size(10**9) == "1.00e+9"
    deep = small(depth=[128]).size()  # 12 choices in each of 128 layers, of 2 widths in 2 formats
    assert deep == 2 * 2 * 12**128
    assert show_size(deep) == "5.46e+138"


def test_a_value_outside_the_space_has_no_row() -> None:
    space = small()
    choices = space.choices(np.zeros(len(space.genes), int))
    with pytest.raises(SpecError, match="not in the space"):
        space.row(choices | {"d_model": 65})


def test_nearest_of_a_row_is_itself_and_sizes_are_compared_by_ratio() -> None:
    space = small(sharing=["none", "pairs"], tie_embeddings=[True, False])
    for row in space.sample(100, np.random.default_rng(0)):
        assert (space.nearest(space.choices(row)) == row).all()
    drawn = space.choices(space.row(space.choices(space.sample(1, np.random.default_rng(1))[0])))
    layer = {"heads": 3, "kv_heads": 3, "ffn": "swiglu", "ffn_width": 79}
    near = space.choices(space.nearest(drawn | {"d_model": 91, "depth": 2, "layers": [layer, layer]}))
    # 91/64 = 1.42 > 128/91 = 1.41; heads (3, 3): (4, 4) is 2·ln 4/3 away, (2, 1) is ln 3/2 + ln 3; 79/64 > 96/79
    assert near["d_model"] == 128
    assert near["layers"] == [{"heads": 4, "kv_heads": 4, "ffn": "swiglu", "ffn_width": 96}] * 2
