"""Three and five objectives, whatever the strategy."""

from __future__ import annotations

import numpy as np
import pytest

from chipwise.design.strategies.acquisition import expected_gain, lattice
from chipwise.design.strategies.algorithms import make_strategy
from chipwise.design.strategies.pareto import hypervolume, non_dominated
from chipwise.design.strategies.strategy import Goal, Limit, Problem

STRATEGIES = ["auto", "evolution", "tpe", "reinforce", "gradient", "proxy"]


def _values(rows: np.ndarray, goals: int) -> np.ndarray:
    """Mean squared distances to as many corners, so no design is best in all; the last is turned to be maximised."""
    anchors = np.random.default_rng(1).integers(0, 4, (goals, 10)) / 3
    found = np.stack([((rows / 3 - anchor) ** 2).mean(axis=1) for anchor in anchors], axis=1)
    return found * np.r_[np.ones(goals - 1), -1]


def _violations(rows: np.ndarray) -> np.ndarray:
    return np.column_stack([rows.sum(axis=1) / 20 - 1, rows[:, 0] / 2.0 - 1])


def _problem(goals: int) -> Problem:
    dear = (goals + 1) // 2
    return Problem(
        cardinalities=np.full(10, 4),
        goals=tuple(
            Goal(name=f"g{i}", free=i >= dear, direction="maximize" if i == goals - 1 else "minimize")
            for i in range(goals)
        ),
        limits=(Limit(name="sum", free=True), Limit(name="first", free=False)),
        free=lambda rows: (_values(rows, goals)[:, dear:], _violations(rows)[:, :1]),
    )


def _volume(name: str, goals: int, trials: int) -> float:
    problem = _problem(goals)
    strategy = make_strategy(name, problem, seed=0)
    points = np.zeros((0, goals))
    for _ in range(trials // 10):
        rows = strategy.ask(10)
        values, violations = _values(rows, goals), _violations(rows)
        assert (violations[:, 0] <= 0).all()
        strategy.tell(rows, values, violations)
        points = np.vstack([points, problem.to_minimise(values)[(violations <= 0).all(axis=1)]])
    return hypervolume(points, np.full(goals, 0.5))


@pytest.mark.parametrize(("goals", "trials"), [(3, 100), (5, 60)])
def test_all_find_a_front_and_auto_the_largest(goals: int, trials: int) -> None:
    random = _volume("random", goals, trials)
    found = {name: _volume(name, goals, trials) for name in STRATEGIES}
    assert min(found.values()) > 0
    assert found["auto"] > 1.1 * random
    assert found["auto"] >= max(value for name, value in found.items() if name != "auto")


@pytest.mark.parametrize("goals", [3, 4, 5])
def test_the_expected_gain_is_exact_where_nothing_is_in_doubt(goals: int) -> None:
    rng = np.random.default_rng(goals)
    front = rng.random((20, goals))
    front = front[non_dominated(front)]
    candidates = 0.7 * rng.random((30, goals))
    corner = np.full(goals, 1.1)
    sampled = expected_gain(candidates, np.full_like(candidates, 1e-9), front, corner)
    exact = np.array([hypervolume([*front, one], corner) for one in candidates]) - hypervolume(front, corner)
    assert sampled == pytest.approx(exact, abs=0.05 * exact.max())
    assert np.corrcoef(sampled, exact)[0, 1] > 0.995


def test_doubt_about_a_dominated_candidate_is_worth_something() -> None:
    front = np.array([[0.2, 0.2, 0.2]])
    mean = np.array([[0.3, 0.3, 0.3]])
    corner = np.full(3, 1.1)
    sure = expected_gain(mean, np.array([[1e-9, 0.0, 0.0]]), front, corner)
    unsure = expected_gain(mean, np.array([[0.2, 0.2, 0.2]]), front, corner)
    assert sure[0] == 0
    assert unsure[0] > 0.01


@pytest.mark.parametrize("dimensions", [1, 2, 5])
def test_the_lattice_is_even(dimensions: int) -> None:
    points = lattice(4000, dimensions)
    assert ((points >= 0) & (points < 1)).all()
    assert points.mean(axis=0) == pytest.approx(0.5, abs=0.01)
    assert (points < 0.5).all(axis=1).mean() == pytest.approx(0.5**dimensions, abs=0.01)
    assert np.array_equal(points[1000:], lattice(3000, dimensions, start=1000))
