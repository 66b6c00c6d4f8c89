"""The knee, the price of limits, and what matters, where each can be worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from chipwise.design.strategies.history import History
from chipwise.design.strategies.insights import _gain, importance, relaxations, sweet_spot
from chipwise.design.strategies.strategy import Goal, Limit, Problem


def _trained(problem: Problem, objectives: list[list[float]], rows: np.ndarray | None = None) -> History:
    history = History(problem)
    rows = np.arange(len(objectives))[:, None] if rows is None else rows
    history.tell(rows, objectives, np.zeros((len(rows), len(problem.limits))))
    return history


def test_the_knee_and_why() -> None:
    problem = Problem(cardinalities=np.array([5]), goals=(Goal(name="loss"), Goal(name="speed", direction="maximize")))
    spot = sweet_spot(_trained(problem, [[0.0, 0.0], [0.2, 8.0], [1.0, 10.0], [1.1, 5.0]]))
    assert spot is not None
    assert spot.trial == 1
    assert spot.kept == pytest.approx({"loss": 0.8, "speed": 0.8})
    assert "from the front's worst to its best value, it reaches 80 % in loss and 80 % in speed" in spot.why
    assert "the other 20 % in loss would cost 80 % in speed" in spot.why


def test_a_straight_front_has_no_knee() -> None:
    problem = Problem(cardinalities=np.array([5]), goals=(Goal(name="a"), Goal(name="b")))
    assert sweet_spot(_trained(problem, [[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]])) is None
    assert sweet_spot(History(problem)) is None


def _limited() -> Problem:
    """Loss falls by 1 with every step of 4 variables; `tight` allows 6 steps, `loose` never binds."""

    def free(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        steps = rows.sum(axis=1)
        return np.zeros((len(rows), 0)), np.stack([steps / 6 - 1, steps / 100 - 1], axis=1)

    return Problem(
        cardinalities=np.full(4, 4),
        goals=(Goal(name="loss"),),
        limits=(Limit(name="loose", free=True), Limit(name="tight", free=True)),
        free=lambda rows: (free(rows)[0], free(rows)[1][:, ::-1]),
    )


def test_what_a_limit_costs() -> None:
    """A sixth more allows 7 steps instead of 6: loss 20 - 7 instead of 20 - 6, a fourteenth better."""
    problem = _limited()
    history = History(problem)
    rows = np.unique(problem.draw(60, np.random.default_rng(0)), axis=0)
    history.tell(rows, 20.0 - rows.sum(axis=1))
    tight, loose = relaxations(history, seed=0, share=0.17)
    assert (tight.limit, loose.limit) == ("tight", "loose")
    assert tight.best["loss"] == pytest.approx((14, 13), abs=0.2)
    assert tight.gain == pytest.approx(1 / 14, abs=0.02)
    assert tight.row is not None
    assert tight.row.sum() == 7
    assert (loose.gain, loose.row) == (0.0, None)


def test_with_two_objectives_the_gain_is_hypervolume() -> None:
    problem = Problem(
        cardinalities=np.full(4, 4),
        goals=(Goal(name="gain", direction="maximize"), Goal(name="cost", free=True)),
        limits=(Limit(name="size", free=True),),
        free=lambda rows: (rows[:, :1] + 1.0, rows.sum(axis=1, keepdims=True) / 6 - 1),
    )
    history = History(problem)
    rows = np.unique(problem.draw(60, np.random.default_rng(0)), axis=0)
    history.tell(rows, np.column_stack([rows.sum(axis=1), rows[:, 0] + 1.0]))
    (size,) = relaxations(history, seed=0, share=0.17)
    assert size.best["gain"] == pytest.approx((6, 7), abs=0.1)
    assert size.best["cost"] == (1, 1)
    assert size.gain > 0.05


def test_importance_of_an_additive_function() -> None:
    """f = 3 a + b of equal variances: shares 9/10 and 1/10, nothing for c."""
    problem = Problem(cardinalities=np.array([4, 4, 4]), goals=(Goal(name="loss"),), kinds=("a", "b", "c"))
    found = importance(problem, lambda rows: 3.0 * rows[:, 0] + rows[:, 1], seed=0, count=4000)
    assert list(found) == ["a", "b", "c"]
    assert found["a"] == pytest.approx(0.9, abs=0.03)
    assert found["b"] == pytest.approx(0.1, abs=0.01)
    assert found["c"] == 0


def test_importance_counts_a_kind_once_and_acting_together_twice() -> None:
    """x·y of signs -1, 1 has no main effects: each total index is 1."""
    problem = Problem(cardinalities=np.array([2, 2, 2]), goals=(Goal(name="loss"),), kinds=("x", "y", "y"))
    found = importance(problem, lambda rows: (2.0 * rows[:, 0] - 1) * (2 * rows[:, 1] - 1), seed=0, count=4000)
    assert found["x"] == pytest.approx(1, abs=0.1)
    assert found["y"] == pytest.approx(1, abs=0.1)
    assert len(found) == 2


def test_a_row_is_new_where_it_is_let_in_or_one_of_its_objectives_changes() -> None:
    """In spans of the new front, (0, 1) to (1, 0), with a corner at 1.1, by pencil."""
    now = np.array([[0.0, 1.0], [1.0, 0.5], [5.0, 5.0]])
    held, all_in = np.array([True, True, False]), np.array([True, True, False])
    assert _gain(now, held, now, all_in) == (0.0, None)  # nothing changed
    better = np.array([[0.0, 1.0], [1.0, 0.0], [5.0, 5.0]])  # the second gains in one objective alone
    share, at = _gain(now, held, better, all_in)
    before = 1.1 * 0.1 + 0.1 * 0.5  # (0, 1), and what (1, 0.5) adds below it
    assert at == 1
    assert share == pytest.approx((1.1 * 0.1 + 0.1 * 1.0) / before - 1)
    let_in = np.array([True, True, True])
    worse = np.array([[0.0, 1.0], [1.0, 0.5], [2.0, 2.0]])
    assert _gain(now, held, worse, let_in) == (0.0, None)  # the third is let in, behind the others
    assert _gain(now, np.zeros(3, bool), better, all_in) == (float("inf"), 0)  # nobody was in before
    assert _gain(now[:, :1], held, np.array([[-0.5], [1.0], [5.0]]), all_in) == (0.5 / 1e-300, 0)
