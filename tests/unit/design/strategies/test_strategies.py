"""The strategies find what they should; test_strategy_contract.py holds them to the contract."""

from __future__ import annotations

import numpy as np
import pytest

from chipwise.api.testing.strategy_suite import toy_objectives, toy_problem
from chipwise.design.strategies.algorithms import STRATEGIES, make_strategy, strategy_info
from chipwise.design.strategies.algorithms.auto import Auto
from chipwise.design.strategies.pareto import hypervolume
from chipwise.design.strategies.strategy import Goal, Limit, Problem
from chipwise.errors import InputError, UnknownName


def test_table_lists_what_it_loads() -> None:
    assert STRATEGIES.names()[:3] == ["auto", "random", "evolution"]
    for name in STRATEGIES.names():
        if name == "vizier":  # an extra; tests/unit/design/strategies/test_vizier*.py
            continue
        assert make_strategy(name, toy_problem(), seed=0).ask(1).shape == (1, 6)
        assert strategy_info(name).when
    with pytest.raises(UnknownName, match="did you mean 'evolution'"):
        make_strategy("evolutoin", toy_problem(), seed=0)


def _explore(name: str, problem: Problem, trials: int, seed: int = 0) -> np.ndarray:
    strategy = make_strategy(name, problem, seed=seed)
    rows = np.zeros((0, len(problem.cardinalities)), int)
    while len(rows) < trials:
        new = strategy.ask(5)
        strategy.tell(new, toy_objectives(new))
        rows = np.vstack([rows, new])
    return rows


def test_evolution_beats_random_search_and_auto_needs_a_fifth_of_its_trials() -> None:
    problem = toy_problem(variables=16)
    found = {
        name: hypervolume(toy_objectives(_explore(name, problem, trials)) / [2, 40], [1.0, 1.0])
        for name, trials in (("random", 300), ("evolution", 300), ("auto", 60))
    }
    assert found["random"] < found["evolution"] < found["auto"]


def test_auto_finds_a_feasible_corner_that_sampling_misses() -> None:
    """Width 2 holds the limit only where all but one of 20 layers are thin: 41 of 3 x 3**20 rows."""

    def free(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        size = (1 + rows[:, 0]) ** 2 * (10 + rows[:, 1:].sum(axis=1))
        return np.zeros((len(rows), 0)), (size / 100 - 1)[:, None]  # 9 * (10 + 1) = 99

    problem = Problem(
        cardinalities=np.full(21, 3), goals=(Goal(name="loss"),), limits=(Limit(name="size", free=True),), free=free
    )
    strategy = Auto(problem, seed=0)
    best = np.inf
    for _ in range(8):
        rows = strategy.ask(5)
        loss = 10.0 - 4 * rows[:, 0] - 0.01 * rows[:, 1:].sum(axis=1)
        strategy.tell(rows, loss[:, None])
        best = min(best, float(loss.min()))
    assert best == pytest.approx(10 - 8 - 0.01)


def test_auto_is_led_by_its_prior_and_survives_a_wrong_one() -> None:
    truth = toy_problem(variables=12, limit=None)
    scores = {}
    for name, sign in (("right", 1), ("wrong", -1)):
        problem = Problem(
            cardinalities=truth.cardinalities,
            goals=truth.goals,
            free=truth.free,
            prior=lambda rows, sign=sign: sign * toy_objectives(rows)[:, 0],
        )
        rows = _explore("auto", problem, 60)
        scores[name] = [hypervolume(toy_objectives(rows[:n]) / [2, 30], [1.0, 1.0]) for n in (10, 60)]
    assert scores["right"][0] > scores["wrong"][0]
    assert scores["wrong"][1] > 0.97 * scores["right"][1]


def test_auto_with_two_dear_goals_and_three_in_all() -> None:
    problem = Problem(
        cardinalities=np.full(6, 3),
        goals=(Goal(name="a"), Goal(name="b", direction="maximize"), Goal(name="cost", free=True)),
        free=lambda rows: (rows.sum(axis=1, keepdims=True).astype(float), np.zeros((len(rows), 0))),
    )
    strategy = Auto(problem, seed=0)
    points = []
    for _ in range(6):
        rows = strategy.ask(4)
        values = np.stack([(rows[:, 0] - 1.0) ** 2 + rows[:, 1], rows[:, 2] - rows[:, 3], rows.sum(axis=1)], axis=1)
        strategy.tell(rows, values)
        points.append(values)
    found = np.vstack(points)
    assert found[:, 0].min() == 0
    assert found[:, 1].max() == 2


def test_tell_says_what_is_wrong() -> None:
    strategy = make_strategy("random", toy_problem(expensive_limit=True), seed=0)
    rows = strategy.ask(2)
    with pytest.raises(InputError, match=r"need objectives of shape \(2, 2\)"):
        strategy.tell(rows, [[1.0], [2.0]])
    with pytest.raises(InputError, match="violations of size"):
        strategy.tell(rows, toy_objectives(rows))


def test_problem_refuses_what_cannot_be_searched() -> None:
    with pytest.raises(InputError, match="at least one objective"):
        Problem(cardinalities=np.array([2]), goals=())
    with pytest.raises(InputError, match="no function `free`"):
        Problem(cardinalities=np.array([2]), goals=(Goal(name="cost", free=True),))
    with pytest.raises(InputError, match="at least one value"):
        Problem(cardinalities=np.array([2, 0]), goals=(Goal(name="loss"),))
    with pytest.raises(InputError, match="one kind for each of 2 variables, not 1"):
        Problem(cardinalities=np.array([2, 2]), goals=(Goal(name="loss"),), kinds=("width",))
