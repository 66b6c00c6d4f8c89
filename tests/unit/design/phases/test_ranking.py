"""Kendall's τ with its interval: by hand, against scipy, and what too few candidates come to."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chipwise.design.phases.findings import agreement, equal, rankings
from chipwise.design.run.trials import TrainedRung, TrialNotes
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Workload


def test_tau_by_hand() -> None:
    """Of the ten pairs of five, one is the other way round: (9 - 1) / 10."""
    found = agreement([1, 2, 3, 4, 5], [1, 2, 3, 5, 4])
    assert (found.candidates, found.pairs) == (5, 10)
    assert found.tau == pytest.approx(0.8)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.8 <= found.high == pytest.approx(1.0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=5, max_size=20))
def test_tau_with_ties_is_scipys(columns) -> None:
    scipy = pytest.importorskip("scipy.stats")
    x, y = zip(*columns, strict=True)
    expected = scipy.kendalltau(x, y).statistic
    found = agreement(x, y).tau
    if np.isnan(expected):
        assert found is None
    else:
        assert found == pytest.approx(expected)


def test_more_candidates_narrow_the_interval_and_chance_holds_zero() -> None:
    rng = np.random.default_rng(0)

    def width(count: int) -> float:
        found = agreement(rng.normal(size=count), rng.normal(size=count))
        assert found.low < 0 < found.high
        return found.high - found.low

    assert width(200) < width(12) / 2


def test_four_candidates_are_too_few_and_so_are_seven_pairs() -> None:
    assert agreement([1, 2, 3, 4], [1, 2, 3, 4]).tau is None
    pairs = np.zeros((6, 6), bool)
    pairs[0, 1:] = pairs[1:, 0] = True
    found = agreement(range(6), range(6), pairs=pairs)
    assert (found.pairs, found.tau) == (5, None)


def test_who_was_not_judged_does_not_count() -> None:
    found = agreement([1, 2, np.nan, 3, 4, 5], [1, 2, 0, 3, 4, 5])
    assert (found.candidates, found.tau) == (5, pytest.approx(1.0))


def test_equal_latency_is_within_five_per_cent_of_one_value() -> None:
    """95 and 105 are both within 5 % of 100; 95 and 105.5 are within 5 % of nothing."""
    assert equal([95.0, 105.0])[0, 1]
    assert not equal([95.0, 105.5])[0, 1]


def candidate(number: int, width: int, rungs: list[float]):
    """One whose trainings gave ``rungs``, in their order."""
    design = Design(arch=uniform(vocab_size=256, d_model=width, depth=1, heads=2, ffn_width=32, max_tokens=64))
    results = [
        TrainedRung(rung=i, cpu_s=10.0 * 3**i, tokens=1, loss=bits, quantised_loss=bits) for i, bits in enumerate(rungs)
    ]
    notes = TrialNotes(
        role="candidate",
        choices={},
        predicted={"tpot_p50": [1.0, 1.0, 1.0]},
        law=value(width),
        believed={"1": [rungs[0], 0.1]},
    )
    return SimpleNamespace(
        design=design,
        rungs=results,
        notes=notes,
        format_of=None,
        after=lambda rung: results[rung] if rung < len(results) else None,
    )


def value(width: int) -> float:
    return 3.0 - width / 256


def test_tables_go_from_long_to_short_and_say_who_judged() -> None:
    widths = [32, 48, 64, 80, 96, 112, 128]
    items = [candidate(i, w, [value(w)] + ([-value(w)] if i < 6 else [])) for i, w in enumerate(widths)]
    longer, shorter = rankings(items, Workload(prompt_tokens=8, new_tokens=8))
    assert (longer.cpu_s, longer.candidates, shorter.candidates) == (30.0, 6, 7)
    said = {one.name: one.overall.tau for one in shorter.fidelities}
    assert said == pytest.approx({"parameters": 1.0, "FLOPs of a prompt": 1.0, "scaling law, before any training": 1.0})
    turned = {one.name: one.overall.tau for one in longer.fidelities}
    assert turned == pytest.approx(
        {
            "parameters": -1.0,
            "FLOPs of a prompt": -1.0,
            "scaling law, before any training": -1.0,
            "training of 10 s": -1.0,
            "quality model's prediction before it": -1.0,
        }
    )
    assert all(one.equal_latency == one.overall for one in longer.fidelities)


def test_a_length_that_few_had_is_named_without_figures() -> None:
    items = [candidate(i, 32 + 16 * i, [1.0 + i, 1.0 + i] if i < 2 else [1.0 + i]) for i in range(5)]
    longer, shorter = rankings(items, Workload(prompt_tokens=8, new_tokens=8))
    assert (longer.candidates, longer.fidelities) == (2, ())
    assert shorter.fidelities
