"""A toy run explained: what its trials know shows in knee and importance."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import pytest
from toy_run import SPACE, SPEC, metrics, two_bytes

from chipwise.core.files import build
from chipwise.design.limits import parse_objectives
from chipwise.design.phases.choosing import Chooser, Observation
from chipwise.design.phases.findings import explain_answer
from chipwise.design.phases.screening import screen
from chipwise.design.report.record import Answer
from chipwise.training.laws.operators import SPREAD


@dataclass
class Trained:
    number: int
    row: list[int]
    loss: float | None = None  # as exported


@pytest.fixture(scope="module")
def made():
    screened = screen(SPACE, metrics, SPEC.limits, seed=0, draws=500)
    chooser = Chooser(
        SPACE,
        screened,
        metrics,
        SPEC.goals,
        SPEC.limits,
        final=9.0,
        bytes_per_token=two_bytes,
        seed=0,
    )
    rows = screened.rows[np.random.default_rng(0).permutation(len(screened.rows))[:24]]
    seen = [Observation(row.tolist(), 9.0, 9_000, 1.0 + 20.0 / SPACE.values(row[None], "d_model")[0]) for row in rows]
    return chooser, seen, [Trained(i, row.tolist()) for i, row in enumerate(rows)]


def test_the_findings_are_a_record_answer(made) -> None:
    chooser, seen, items = made
    found = explain_answer(SPACE, chooser, seen, items, seed=0)
    answer = build(Answer, found)
    assert {item.limit for item in answer.relaxed} == {"tpot_p99"}
    assert answer.knee is None or answer.knee in {item.number for item in items}


def test_what_decides_quality_and_cost_is_found(made) -> None:
    chooser, seen, items = made
    shares = explain_answer(SPACE, chooser, seen, items, seed=0)["importance"]
    assert next(iter(shares["bits_per_byte"])) == "d_model"  # the toy's quality is the width's alone
    assert shares["tpot_p50"]["d_model"] > 0.2  # its cost is width times depth
    assert shares["tpot_p50"]["depth"] > 0.2
    assert shares["tpot_p50"]["ffn"] == pytest.approx(0.0, abs=1e-9)


def test_a_handful_of_trainings_explains_nothing(made) -> None:
    chooser, seen, items = made
    assert explain_answer(SPACE, chooser, seen[:3], items[:3], seed=0) == {"foreseen": None, "alternatives": []}


def test_what_the_prior_said_is_what_the_law_says_before_the_first_training(made) -> None:
    """Losses of the law itself: it was right, and its order too. Half of them turned round: tau falls."""
    chooser, seen, items = made
    rows = np.array([item.row for item in seen])
    law = chooser.law(rows, budget=9.0)
    true = [dataclasses.replace(item, loss=float(loss)) for item, loss in zip(seen, law, strict=True)]
    longer = dataclasses.replace(true[0], spent=18.0, loss=7.0)
    found = explain_answer(SPACE, chooser, [*true, longer], items, winner=items[0], seed=0)
    foreseen = build(Answer, found).foreseen
    assert foreseen is not None
    mean, low, high = foreseen.expected
    assert mean == pytest.approx(float(chooser.law(rows[:1], budget=18.0)[0]))
    assert (foreseen.loss, foreseen.tau, foreseen.trainings) == (7.0, pytest.approx(1.0), 24)
    assert (low, high) == (pytest.approx(mean * math.exp(-1.645 * SPREAD), rel=1e-4), pytest.approx(mean**2 / low))
    wrong = [dataclasses.replace(item, loss=1 / item.loss) for item in true]
    assert explain_answer(SPACE, chooser, wrong, items, winner=items[0], seed=0)["foreseen"]["tau"] == -1.0
    shipped = dataclasses.replace(items[0], loss=1.5)
    assert explain_answer(SPACE, chooser, true, items, winner=shipped, seed=0)["foreseen"]["loss"] == 1.5
    few = explain_answer(SPACE, chooser, true[:1], items[:1], winner=items[0], seed=0)["foreseen"]
    assert (few["tau"], few["trainings"]) == (None, 1)


def test_more_tokens_a_second_are_better_not_worse(made) -> None:
    """The toy's seconds are width times depth, so 1 / seconds of tokens; quality is the width's alone."""
    _, seen, items = made
    goals = parse_objectives({"bits_per_byte": "minimize", "throughput": "maximize"})
    faster = lambda rows: metrics(rows) | {"throughput": 1 / metrics(rows)["tpot_p50"]}  # noqa: E731
    screened = screen(SPACE, faster, SPEC.limits, seed=0, draws=500)
    chooser = Chooser(
        SPACE,
        screened,
        faster,
        goals,
        SPEC.limits,
        final=9.0,
        bytes_per_token=two_bytes,
        seed=0,
    )
    chosen = chooser.next(6, seen, [item.row for item in items])
    depth = SPACE.values(chosen, "depth")
    assert (depth == 1).mean() > 0.5  # deeper ones make fewer tokens a second at the same quality
