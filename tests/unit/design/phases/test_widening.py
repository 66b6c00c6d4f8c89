"""A space widens where its best designs lie at its edge, as far as that pays and no further."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from toy_run import LAW_RUN, SPEC

from chipwise.api import search
from chipwise.design.phases.halving import LEAST_GAIN
from chipwise.design.phases.widening import MOST_ROUNDS, said, widened, with_values
from chipwise.design.report.card import line_of
from chipwise.design.run.spec import run_spec
from chipwise.errors import SpecError

CONSERVATIVE = LAW_RUN | {
    "space": LAW_RUN["space"] | {"d_model": [640, 896], "depth": [8, 16]},
    "constraints": {"tpot_p50": "<= 40 ms"},
}


def best_of(loss):
    """The best design of a space whose loss is a formula of width and depth."""

    def best(space):
        d_model, depth = min(((d, n) for d in space.d_model for n in space.depth), key=lambda one: loss(*one))
        layer = {"ffn": "relu", "ffn_width": space.layer.ffn_width[0]}
        return {"d_model": d_model, "depth": depth, "layers": [layer] * depth}, loss(d_model, depth)

    return best


def test_widths_grow_by_the_step_of_the_list_to_the_least_loss() -> None:
    """Of 32, 64, 96, 128 the next are 160, 192 and so on; the loss is least at 200, so 192 is the last that pays."""
    added, gain = widened(SPEC.space, best_of(lambda d, n: 1 + abs(d - 200) / 100), tile=16)
    assert added == {"d_model": [160, 192]}
    assert gain == pytest.approx(math.log((1 + 0.72) / (1 + 0.08)))


def test_two_sizes_grow_together() -> None:
    added, _ = widened(SPEC.space, best_of(lambda d, n: 1 + abs(d - 160) / 100 + abs(n - 5)), tile=16)
    assert added == {"d_model": [160], "depth": [4, 5]}


@pytest.mark.parametrize("tile", [1, 16, 64, 128])
def test_new_widths_are_multiples_of_the_tile(tile) -> None:
    added, _ = widened(SPEC.space, best_of(lambda d, n: 100 / d), tile=tile)
    assert len(added["d_model"]) == MOST_ROUNDS
    assert all(width % tile == 0 for width in added["d_model"])
    assert added["d_model"][0] == max(128 + 32, 128 // tile * tile + tile if tile > 32 else 0)


def test_a_gain_below_what_another_seed_changes_widens_nothing() -> None:
    slope = 0.9 * LEAST_GAIN
    assert widened(SPEC.space, best_of(lambda d, n: math.exp(-slope * d / 32)), tile=16) == ({}, 0.0)
    assert widened(SPEC.space, best_of(lambda d, n: math.exp(-1.5 * slope * d / 32)), tile=16)[0]


def test_an_inner_best_design_and_a_list_of_one_value_widen_nothing() -> None:
    assert widened(SPEC.space, best_of(lambda d, n: 1 + abs(d - 64) + abs(n - 2)), tile=16) == ({}, 0.0)
    fixed = replace(SPEC.space, d_model=(64,))
    assert widened(fixed, best_of(lambda d, n: 100 / d + abs(n - 2)), tile=16) == ({}, 0.0)


def test_layers_are_at_most_as_many_as_a_space_may_have() -> None:
    deep = replace(SPEC.space, depth=(126, 127))
    added, _ = widened(deep, best_of(lambda d, n: abs(d - 64) + 100 - n / 2), tile=16)
    assert added == {"depth": [128]}


def test_the_sentence_names_what_was_added() -> None:
    text = said(SPEC.space, {"d_model": [160, 192]}, math.log(1 / 0.9))
    assert "d_model 160, 192 (the file lists up to 128)" in text
    assert "a loss 10 % lower" in text


def test_further_values_follow_those_of_the_file() -> None:
    wide = with_values(SPEC.space, {"d_model": [160], "ffn_width": [192]})
    assert wide.d_model == (32, 64, 96, 128, 160)
    assert wide.layer.ffn_width == (64, 128, 192)
    assert with_values(SPEC.space, {}) == SPEC.space


def test_a_search_widens_its_space_and_says_so(tmp_path) -> None:
    """Its winner is outside the listed sizes, better than without, within the limit; going on, the space stays."""
    narrow = search(CONSERVATIVE, out=tmp_path / "narrow")
    seen = []
    wide = search(
        CONSERVATIVE | {"widen": "auto"}, out=tmp_path / "wide", on_progress=lambda status: seen.append(status.phase)
    )
    assert "searching a wider space" in seen
    assert narrow.space.widened is None
    assert wide.space.widened in wide.notes
    assert line_of(wide.space.widened) in (tmp_path / "wide" / "card.md").read_text()
    assert wide.space.widened.partition(":")[0] in (tmp_path / "wide" / "report.html").read_text()
    choices = wide.trial(wide.winner).choices
    assert choices["d_model"] > 896 or choices["depth"] > 16
    assert choices["d_model"] % 128 == 0
    assert wide.trial(wide.winner).predicted["tpot_p50"].value < 40e-3

    def loss(run):
        return run.trial(run.winner).predicted["expected_loss"].value

    assert loss(wide) < loss(narrow) * math.exp(-LEAST_GAIN)
    again = search(CONSERVATIVE | {"widen": "auto"}, out=tmp_path / "wide", resume=True)
    assert (again.winner, again.space.choices) == (wide.winner, wide.space.choices)


def test_a_binding_limit_widens_nothing(tmp_path) -> None:
    """Where the largest design of the file takes too long, larger ones do not help."""
    tight = CONSERVATIVE | {"widen": "auto", "constraints": {"tpot_p50": "<= 5 ms"}}
    assert search(tight, out=tmp_path / "tight").space.widened is None


@pytest.mark.parametrize("value", ["yes", True, 2, None])
def test_other_words_are_refused(value) -> None:
    with pytest.raises(SpecError, match="widen"):
        run_spec(LAW_RUN | {"widen": value}, file="run.yaml")
