"""Soft limits and fidelities, whatever the strategy."""

from __future__ import annotations

import numpy as np
import pytest

from chipwise.design.strategies.algorithms import make_strategy
from chipwise.design.strategies.quality_model import QualityModel
from chipwise.design.strategies.strategy import Goal, Limit, Problem
from chipwise.errors import InputError

EVERY = ["auto", "random", "evolution", "grid", "tpe", "reinforce", "gradient", "proxy"]


def _soft(penalty: float | None, *, free: bool = True) -> Problem:
    """Loss 10 - steps, of 4 variables of 4 values; each step past 6 is a sixth too many."""
    return Problem(
        cardinalities=np.full(4, 4),
        goals=(Goal(name="loss"),),
        limits=(Limit(name="steps", free=free, penalty=penalty),),
        free=lambda rows: (np.zeros((len(rows), 0)), _excess(rows)[:, : 1 if free else 0]),
    )


def _excess(rows: np.ndarray) -> np.ndarray:
    return (rows.sum(axis=1) / 6 - 1)[:, None]


def _loss(rows: np.ndarray) -> np.ndarray:
    return (14.0 - rows.sum(axis=1))[:, None]


@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("name", EVERY[:-1])  # proxy has no score to go by here, and says so
def test_a_soft_limit_is_broken_where_that_pays(name: str, free: bool) -> None:
    """With a penalty of 0.01 all 12 steps pay: 2 · 1.01 < 8; rows past the hard limit are asked for."""
    strategy = make_strategy(name, _soft(0.01, free=free), seed=0)
    asked = np.zeros((0, 4), int)
    for _ in range(10):
        rows = strategy.ask(5)
        strategy.tell(rows, _loss(rows), _excess(rows))
        asked = np.vstack([asked, rows])
    assert (_excess(asked) > 0).any()
    if name in ("auto", "gradient"):
        assert _loss(asked).min() == 2


def test_a_high_penalty_keeps_auto_within_the_limit() -> None:
    """At 7 steps the loss is 7 · (1 + 10 / 6) = 18.7, at 6 it is 8."""
    strategy = make_strategy("auto", _soft(10.0), seed=0)
    for _ in range(8):
        rows = strategy.ask(5)
        strategy.tell(rows, _loss(rows), _excess(rows))
    assert (rows.sum(axis=1) <= 6).mean() >= 0.8


def test_penalties_of_maximised_and_of_free_first_objectives() -> None:
    """Both ways a violation of 1 with penalty 0.5 makes 8 count as half its size worse."""
    told: list[np.ndarray] = []

    class Spy:
        def __init__(self, problem: Problem, *, seed: int) -> None:
            self.problem = problem

        def tell(self, rows: np.ndarray, objectives: np.ndarray, violations: np.ndarray) -> None:
            told.append(objectives)
            told.append(violations)

    from chipwise.design.strategies.wrappers import SoftLimits

    problem = Problem(
        cardinalities=np.array([3]),
        goals=(Goal(name="speed", direction="maximize"), Goal(name="loss")),
        limits=(Limit(name="a", penalty=0.5), Limit(name="b")),
    )
    SoftLimits(problem, lambda one: Spy(one, seed=0)).tell(np.array([[1]]), [[8.0, 1.0]], [[1.0, -0.2]])
    assert told[0].tolist() == [[4.0, 1.0]]
    assert told[1].tolist() == [[-0.2]]

    priced = Problem(
        cardinalities=np.array([3]),
        goals=(Goal(name="time", free=True), Goal(name="loss")),
        limits=(Limit(name="a", free=True, penalty=0.5), Limit(name="b", free=True)),
        free=lambda rows: (np.full((len(rows), 1), 8.0), np.tile([1.0, -0.2], (len(rows), 1))),
    )
    inner = SoftLimits(priced, lambda one: Spy(one, seed=0))._inner.problem
    costs, violations = inner.price(np.array([[1], [2]]))
    assert costs.tolist() == [[12.0], [12.0]]
    assert violations.tolist() == [[-0.2], [-0.2]]


def test_what_cannot_be_penalised_is_said() -> None:
    problem = Problem(
        cardinalities=np.array([3]),
        goals=(Goal(name="time", free=True),),
        limits=(Limit(name="a", penalty=0.5),),
        free=lambda rows: (np.ones((len(rows), 1)), np.zeros((len(rows), 0))),
    )
    with pytest.raises(InputError, match="time, is computed without trials, but the penalty of a soft limit"):
        make_strategy("random", problem, seed=0)


def _short(shares: tuple[float, ...] = (1 / 9, 1 / 3, 1.0)) -> Problem:
    return Problem(
        cardinalities=np.array([4] * 5 + [len(shares)]),
        goals=(Goal(name="loss"), Goal(name="cost", free=True)),
        limits=(Limit(name="size", free=True),),
        free=lambda rows: (rows[:, :-1].sum(axis=1, keepdims=True) + 1.0, rows[:, :1] / 2.0 - 1),
        fidelities=shares,
    )


def _result(rows: np.ndarray) -> np.ndarray:
    """Loss that falls with every step and with the share."""
    return np.column_stack([10.0 - rows.sum(axis=1) / 2, rows[:, :-1].sum(axis=1) + 1])


@pytest.mark.parametrize("name", EVERY)
def test_who_knows_nothing_of_fidelities_tries_in_full(name: str) -> None:
    strategy = make_strategy(name, _short(), seed=0)
    for _ in range(4):
        rows = strategy.ask(6)
        assert rows.shape == (6, 6)
        assert (rows[:, -1] == 2).all()
        assert (rows[:, 0] <= 2).all()
        strategy.tell(rows, _result(rows))
    short = np.array([[0, 0, 0, 0, 0, 0]])
    strategy.tell(short, _result(short))  # a short trial teaches it nothing
    assert len(strategy.ask(3)) == 3


@pytest.mark.parametrize("name", ["halving", "asha"])
def test_one_in_three_goes_on(name: str) -> None:
    """Of 81 trials 54 or so are the shortest, a third of those go on, a ninth to the end.

    ASHA promotes a few more: who was among the best third when there were fewer trials has gone on already.
    """
    strategy = make_strategy(name, _short(), seed=1)
    asked = np.zeros((0, 6), int)
    for _ in range(27):
        rows = strategy.ask(3)
        strategy.tell(rows, _result(rows))
        asked = np.vstack([asked, rows])
    count = np.bincount(asked[:, -1], minlength=3)
    assert len(np.unique(asked, axis=0)) == len(asked)
    early = 5 if name == "asha" else 0
    assert 50 <= count[0] <= 63
    assert count[0] / 3 - 3 <= count[1] <= count[0] / 3 + early
    assert count[1] / 3 - 1 <= count[2] <= count[1] / 3 + early
    longer = {row.tobytes() for row in asked[asked[:, -1] == 2][:, :-1].copy()}
    assert longer <= {row.tobytes() for row in asked[asked[:, -1] == 1][:, :-1].copy()}


def test_the_best_go_on() -> None:
    """One objective: after a cohort of 9, halving promotes the 3 with the least loss, then the best of those."""
    problem = Problem(cardinalities=np.array([4, 4, 4, 3]), goals=(Goal(name="loss"),), fidelities=(0.1, 0.3, 1.0))
    strategy = make_strategy("halving", problem, seed=0)
    first = strategy.ask(9)
    strategy.tell(first, -first[:, :-1].sum(axis=1))
    second = strategy.ask(3)
    best = np.sort(first[:, :-1].sum(axis=1))[::-1][:3]
    assert (second[:, -1] == 1).all()
    assert np.sort(second[:, :-1].sum(axis=1))[::-1].tolist() == best.tolist()
    waiting = strategy.ask(2)
    assert (waiting[:, -1] == 0).all()  # workers that are free begin the next cohort
    strategy.tell(second, -second[:, :-1].sum(axis=1))
    last = strategy.ask(1)
    assert last[0, -1] == 2
    assert last[0, :-1].sum() == best[0]


def test_the_best_of_a_cohort_of_27_at_the_last_share_goes_on_to_the_end() -> None:
    """Four fidelities: 9 of 27 go on, 3 of those, and of them the one that is best at its own share, not before."""
    shares = (1 / 27, 1 / 9, 1 / 3, 1.0)
    problem = Problem(cardinalities=np.array([4, 4, 4, 4]), goals=(Goal(name="loss"),), fidelities=shares)
    strategy = make_strategy("halving", problem, seed=0)
    for level, count in enumerate((27, 9, 3)):
        rows = strategy.ask(count)
        assert (rows[:, -1] == level).all()
        steps = rows[:, :-1] @ [16, 4, 1]  # no two designs alike
        strategy.tell(rows, steps if level == 2 else -steps)
    (last,) = strategy.ask(1)
    assert last[-1] == 3
    assert last[:-1] @ [16, 4, 1] == steps.min()


@pytest.mark.parametrize("shares", [(0.5,), (1.0, 0.5), (0.0, 1.0)])
def test_fidelities_rise_to_one(shares: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="rise to 1"):
        Problem(cardinalities=np.array([2, len(shares)]), goals=(Goal(name="loss"),), fidelities=shares)


def test_as_many_fidelities_as_values() -> None:
    with pytest.raises(InputError, match="must have 2 values, one per fidelity"):
        Problem(cardinalities=np.array([2, 3]), goals=(Goal(name="loss"),), fidelities=(0.5, 1.0))


def test_a_prior_of_a_maximised_goal_points_upwards() -> None:
    """A guess says of a goal that is better when higher: higher here. Before trials the model repeats it."""
    for direction, sign in (("minimize", 1), ("maximize", -1)):
        problem = Problem(
            cardinalities=np.full(4, 4),
            goals=(Goal(name="quality", direction=direction),),  # type: ignore[arg-type]
            prior=lambda rows: rows.sum(axis=1).astype(float),
        )
        rows = np.array([[0, 0, 0, 0], [3, 3, 3, 3]])
        low, high = QualityModel(problem, seed=0).fit(rows[:0], []).predict(rows)[0]
        assert np.sign(high - low) == sign
