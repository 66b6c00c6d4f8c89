"""Ties and conditions: what they leave is counted exactly, drawn without a miss, and refused where it is nothing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from chipwise.core.files import build
from chipwise.errors import SpecError
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import SpaceSpec

SMALL = {
    "d_model": [64, 128],
    "depth": [1, 2, 3],
    "vocab_size": [512],
    "layer": {"heads": [2, 4], "kv_heads": [1, 4], "ffn": ["relu", "swiglu"], "ffn_width": [64, 96]},
}
PAIRS = 3  # (2, 1) (4, 1) (4, 4)


def space(**changes) -> SearchSpace:
    return SearchSpace(build(SpaceSpec, SMALL | changes))


def distinct(found: SearchSpace) -> set[str]:
    """Digests of all designs, by going through every row there is."""
    every = np.array(list(itertools.product(*(range(c) for c in found.cardinalities))))
    return {found.design(row).digest for row in np.unique(found.canonical(every), axis=0)}


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({"layers": "alternating"}, 2 * (12 + 12**2 + 12**2)),  # of three layers the first and last are one choice
        ({"layers": "thirds"}, 2 * (12 + 12**2 + 12**3)),
        ({"layers": {"attention": "alike", "ffn_width": "alternating"}}, 2 * PAIRS * (2 * 2 + 4 * 4 + 8 * 4)),
        ({"layers": "alternating", "sharing": ["pairs"]}, 2 * (12 + 12 + 12)),
        ({"conditions": [{"when": {"d_model": 64}, "only": {"depth": [1]}}]}, 12 + (12 + 12**2 + 12**3)),
        # relu with 64 alone: of 12 choices of a layer a quarter goes
        ({"conditions": [{"when": {"ffn": "relu"}, "only": {"ffn_width": 64}}]}, 2 * (9 + 9**2 + 9**3)),
        ({"conditions": [{"when": {"heads": 4}, "only": {"kv_heads": 4}}]}, 2 * (8 + 8**2 + 8**3)),
        ({"conditions": [{"when": {"layer": 0}, "only": {"ffn": "relu"}}]}, 2 * (6 + 6 * 12 + 6 * 12**2)),
        (
            {"layers": "thirds", "conditions": [{"when": {"layer": "last"}, "only": {"heads": 4, "kv_heads": 4}}]},
            2 * (12 + 12**2 + 12**2 * 4),
        ),
        # two conditions, the second on what the first limits: width 64 takes depth 1 and 2, and at depth 2 swiglu alone
        (
            {
                "conditions": [
                    {"when": {"d_model": 64}, "only": {"depth": [1, 2]}},
                    {"when": {"depth": 2}, "only": {"ffn": ["swiglu"]}},
                ]
            },
            (12 + 6**2) + (12 + 6**2 + 12**3),
        ),
    ],
)
def test_size_is_exact(changes, size) -> None:
    assert space(**changes).size() == size


@pytest.mark.parametrize(
    "changes",
    [
        {"depth": [1, 2], "layers": "alternating", "sharing": ["none", "pairs"]},
        {"depth": [1, 3], "layers": "thirds", "d_model": [64]},
        {
            "depth": [2],
            "layers": {"attention": "alike"},
            "conditions": [{"when": {"heads": 2}, "only": {"kv_heads": 1}}],
        },
        {
            "depth": [1, 2],
            "sharing": ["none", "pairs"],
            "conditions": [
                {"when": {"d_model": 64, "ffn": "swiglu"}, "only": {"ffn_width": 96}},
                {"when": {"heads": 4}, "only": {"ffn": "swiglu"}},
                {"when": {"d_model": 128}, "only": {"sharing": "none"}},
            ],
        },
        {
            "depth": [1, 2],
            "sharing": ["none", "pairs"],
            "conditions": [{"when": {"sharing": "pairs"}, "only": {"depth": 2}}],
        },
    ],
)
def test_going_through_every_row_gives_the_size(changes) -> None:
    found = space(**changes)
    assert len(distinct(found)) == found.size()


def test_drawn_rows_keep_conditions_and_reach_every_design() -> None:
    found = space(
        depth=[1, 2],
        d_model=[64],
        conditions=[
            {"when": {"heads": 4}, "only": {"ffn": "swiglu"}},
            {"when": {"depth": 2}, "only": {"ffn_width": 96}},
        ],
    )
    rows = found.sample(4_000, np.random.default_rng(0))
    assert (found.canonical(rows) == rows).all()
    for row in rows[:200]:
        choices = found.choices(row)
        assert all(layer["ffn"] == "swiglu" for layer in choices["layers"] if layer["heads"] == 4)
        assert choices["depth"] == 1 or all(layer["ffn_width"] == 96 for layer in choices["layers"])
        assert (found.row(choices) == row).all()
    assert len(np.unique(rows, axis=0)) == found.size()


def test_any_row_of_integers_becomes_a_design_and_stays_it() -> None:
    found = space(
        layers="thirds",
        conditions=[
            {"when": {"ffn": "relu"}, "only": {"ffn_width": 64}},
            {"when": {"d_model": 64}, "only": {"depth": 3}},
        ],
    )
    rng = np.random.default_rng(1)
    rows = found.canonical((rng.random((500, len(found.genes))) * found.cardinalities).astype(int))
    assert (found.canonical(rows) == rows).all()
    assert set(map(tuple, rows.tolist())) <= {tuple(found.row(found.choices(row)).tolist()) for row in rows}


def test_a_space_of_1e40_is_counted_and_drawn_at_once() -> None:
    found = space(
        depth=[12, 16],
        layer={
            "heads": [1, 2, 4, 8],
            "kv_heads": [1, 2, 4, 8],
            "ffn": ["relu", "gelu", "silu", "geglu", "swiglu"],
            "ffn_width": list(range(64, 512, 64)),
        },
        conditions=[{"when": {"ffn": "relu"}, "only": {"ffn_width": [64, 128]}}],
    )
    each = 10 * (4 * 7 + 2)  # ten pairs; relu with two widths, four others with seven
    assert found.size() == 2 * (each**12 + each**16) > 10**39
    rows = found.sample(1_000, np.random.default_rng(0))
    assert len(np.unique(rows, axis=0)) == 1_000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": "alternate"}, "did you mean 'alternating'"),
        ({"layers": {"ffns": "alike"}}, "did you mean 'ffn'"),
        (
            {"conditions": [{"when": {"d_modle": 64}, "only": {"depth": 1}}]},
            r"conditions\[0\]\.when\.d_modle.*'d_model'",
        ),
        ({"conditions": [{"when": {"d_model": 65}, "only": {"depth": 1}}]}, "65 is not in the space"),
        ({"conditions": [{"when": {}, "only": {"depth": 1}}]}, "has no effect"),
        ({"conditions": [{"when": {"d_model": 64}, "only": {"depth": []}}]}, "nothing would be allowed"),
        ({"conditions": [{"when": {"heads": 2}, "only": {"d_model": 64}}]}, "swap `when` and `only`"),
        (
            {
                "layers": {"ffn": "alike"},
                "conditions": [{"when": {"ffn": "relu"}, "only": {"ffn_width": 64}}],
            },
            "must be the same for both",
        ),
        (
            {
                "conditions": [
                    {"when": {"d_model": 64}, "only": {"depth": 1}},
                    {"when": {"depth": 1}, "only": {"d_model": 128}},
                ]
            },
            "cycle",
        ),
        (
            {
                "conditions": [
                    {"when": {"d_model": 64}, "only": {"ffn_width": 64}},
                    {"when": {"ffn": "relu"}, "only": {"ffn_width": 96}},
                ]
            },
            "no value of ffn_width is left if these conditions meet: when d_model .64.: .*; and when ffn",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(changes, message) -> None:
    with pytest.raises(SpecError, match=message):
        space(**changes)


def test_ties_refuse_designs_that_break_them() -> None:
    found = space(layers="alike", depth=[2])
    choices = found.choices(found.sample(1, np.random.default_rng(0))[0])
    other = dict(choices["layers"][0], ffn_width=96 if choices["layers"][0]["ffn_width"] == 64 else 64)
    with pytest.raises(SpecError, match="ruled out"):
        found.row(choices | {"layers": [choices["layers"][0], other]})
