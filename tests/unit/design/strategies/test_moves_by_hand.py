"""Fronts against brute force, mutations, and selection, in cases with known answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.design.strategies.algorithms import make_strategy
from chipwise.design.strategies.algorithms.base import BaseStrategy, draw_new, every_row, mutated
from chipwise.design.strategies.algorithms.choice_table import ChoiceTable, gumbel
from chipwise.design.strategies.algorithms.halving import Asha
from chipwise.design.strategies.encoding import Encoder
from chipwise.design.strategies.history import History
from chipwise.design.strategies.insights import _exchanges, _gain, importance
from chipwise.design.strategies.pareto import covered, crowding, hypervolume, non_dominated, ranks
from chipwise.design.strategies.pool import Pool
from chipwise.design.strategies.strategy import Goal, Limit, Problem

LOSS = (Goal(name="loss"),)


def front_of(points: np.ndarray) -> list[bool]:
    """By comparing all with all."""
    return [not any((other <= one).all() and (other < one).any() for other in points) for one in points]


@given(st.integers(1, 4), st.integers(0, 40), st.integers(0, 10_000))
def test_fronts_are_those_of_comparing_all_with_all(goals: int, count: int, seed: int) -> None:
    points = np.random.default_rng(seed).integers(0, 5, (count, goals))
    assert non_dominated(points).tolist() == front_of(points)
    places = np.random.default_rng(seed + 1).integers(0, 5, (7, goals))
    assert covered(places, points).tolist() == [any((p <= place).all() for p in points) for place in places]


def test_fronts_of_more_points_than_are_compared_at_once() -> None:
    points = np.random.default_rng(0).normal(size=(300, 3))
    assert non_dominated(points).tolist() == front_of(points)
    assert covered(points, points).all()


@given(st.integers(2, 4), st.integers(1, 5), st.integers(0, 10_000))
def test_volumes_are_those_of_counting_cells(goals: int, count: int, seed: int) -> None:
    """Points on a grid of side 4: the cells that some point dominates."""
    points = np.random.default_rng(seed).integers(0, 5, (count, goals))
    cells = np.stack(np.meshgrid(*[np.arange(4)] * goals, indexing="ij"), axis=-1).reshape(-1, goals)
    assert hypervolume(points, np.full(goals, 4)) == pytest.approx(float(covered(cells, points).sum()))


def test_layers_and_distances_of_a_layer() -> None:
    points = np.random.default_rng(0).integers(0, 9, (40, 2))
    left, expected, layer = np.arange(40), np.zeros(40, int), 0
    while len(left):
        front = np.array(front_of(points[left]))
        expected[left[front]] = layer
        left, layer = left[~front], layer + 1
    assert ranks(points).tolist() == expected.tolist()
    # 0, 1, 3, 10 and 10, 4, 3, 0 with spans of 10: neighbours 3 and 7, then 9 and 4 apart
    assert crowding([[0, 10], [1, 4], [3, 3], [10, 0]]).tolist() == pytest.approx([np.inf, 1.0, 1.3, np.inf])
    assert crowding([[1, 2], [1, 2], [1, 2]]).tolist() == [np.inf, 0.0, np.inf]


BIG = Problem(cardinalities=np.full(10, 1001), goals=LOSS)


def pool_of(problem: Problem) -> Pool:
    return Pool(problem, Encoder(problem, seed=0), lambda rows, costs, violations: costs[:, :0], 0)


def test_a_mutation_moves_about_three_of_ten_variables_mostly_by_a_step() -> None:
    """One is moved for sure, each other with 1, 1, 2 or 4 in 10: 1 + 9 · 0.2. Seven in ten moves are one step."""
    pool, rows = pool_of(BIG), np.full((4000, 10), 500)
    change = pool._mutated(rows) - rows
    moved = (change != 0).sum(axis=1)
    assert (moved == 0).mean() < 0.001 + 1 / 1001  # where anywhere is where it was
    assert moved.mean() == pytest.approx(2.8, abs=0.1)
    steps = np.abs(change[change != 0])
    assert (steps == 1).mean() == pytest.approx(0.7, abs=0.02)
    assert (change == 1).sum() == pytest.approx((change == -1).sum(), rel=0.1)
    far = pool._mutated(np.zeros((4000, 10), np.int64))
    assert far.min() == 0
    assert far.max() > 900
    assert pool._mutated(np.full((4000, 10), 1000)).max() == 1000


def test_a_swap_keeps_the_sum() -> None:
    pool, rows = pool_of(BIG), np.full((500, 10), 500)
    for _ in range(20):
        change = pool._swapped(rows) - rows
        assert (change.sum(axis=1) == 0).all()
        assert np.abs(change).sum(axis=1).max() <= 4
        assert np.abs(change).sum() > 0
    assert pool._swapped(np.zeros((500, 10), np.int64)).min() == 0


def limited() -> Problem:
    """The first of four variables decides the cost; at most a sum of 3 is allowed."""

    def free(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return 100.0 * rows[:, :1] + rows.sum(axis=1, keepdims=True) + 1, rows.sum(axis=1, keepdims=True) / 3 - 1

    return Problem(
        cardinalities=np.array([3, 3, 3, 3]),
        goals=(Goal(name="loss"), Goal(name="cost", free=True)),
        limits=(Limit(name="sum", free=True),),
        free=free,
    )


def test_a_pool_knows_its_rows_and_forgets_what_it_does_not_keep() -> None:
    pool = pool_of(limited())
    rows = np.array([[0, 1, 1, 1], [0, 1, 1, 1], [2, 2, 2, 2]])
    assert pool.add(rows).tolist() == [0, 1]
    assert pool.add(rows).tolist() == []
    assert pool.excess.tolist() == [0, 8 / 3 - 1]
    assert pool.costs[:, 0].tolist() == [4, 209]
    pool.keep(np.array([1]))
    assert (len(pool), pool.add(rows).tolist()) == (1, [1])


def test_breeding_keeps_what_decides_and_fills_every_stratum_within_the_limits() -> None:
    problem = limited()
    pool = pool_of(problem)
    assert pool.encoder.strata_columns == [0]
    start = np.array([[2, 2, 2, 2]] * 200)
    assert (pool._mutated(start, keep_strata=True)[:, 0] == 2).all()
    pool.seed(30)
    held = pool.rows[pool.excess <= 0]
    # sums of three variables up to 3, 2 and 1 beside a first of 0, 1 and 2: 17, 10 and 4 of the 81 rows
    assert np.bincount(held[:, 0]).tolist() == [17, 10, 4]
    assert len(np.unique(pool.rows, axis=0)) == len(pool)
    new = pool.breed(np.arange(10), 60)
    assert new.tolist() == list(range(len(pool) - len(new), len(pool)))


def test_one_variable_changes_to_any_other_value() -> None:
    rows = np.zeros((6000, 3), np.int64)
    problem = Problem(cardinalities=np.array([1, 4, 3]), goals=LOSS)
    changed = mutated(problem, rows, np.random.default_rng(0))
    assert (changed[:, 0] == 0).all()
    assert ((changed != 0).sum(axis=1) <= 1).all()
    assert np.bincount(changed[:, 1], minlength=4) / 6000 == pytest.approx([2 / 3, 1 / 9, 1 / 9, 1 / 9], abs=0.02)
    assert np.bincount(changed[:, 2], minlength=3) / 6000 == pytest.approx([2 / 3, 1 / 6, 1 / 6], abs=0.02)


def test_draws_are_new_and_within_the_limits_as_long_as_there_are_any() -> None:
    problem = limited()
    history, rng = History(problem), np.random.default_rng(0)
    found = draw_new(problem, history, 31, rng)
    assert len(np.unique(found, axis=0)) == 31
    assert (problem.price(found)[1] <= 0).all()  # 17 + 10 + 4 are within: all of them
    history.mark_pending(found)
    rest = draw_new(problem, history, 1000, rng)
    assert len(rest) == 81 - 31
    assert not history.is_new(found).any()
    assert (problem.price(rest)[1] > 0).all()
    assert every_row(np.array([2, 3])).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]


def test_a_grid_visits_every_row_once_and_evenly() -> None:
    problem = limited()
    grid = make_strategy("grid", problem, seed=3)
    seen = np.vstack([grid.ask(9), grid.ask(22)])
    assert len(np.unique(seen, axis=0)) == 31
    assert (problem.price(seen)[1] <= 0).all()
    assert set(np.unique(seen[:9, 0])) == {0, 1, 2}
    free = make_strategy("grid", Problem(cardinalities=np.array([4, 5, 3]), goals=LOSS), seed=0)
    assert len(np.unique(np.vstack([free.ask(7) for _ in range(9)]), axis=0)) == 60


SHARES = Problem(cardinalities=np.array([30, 3]), goals=LOSS, fidelities=(1 / 9, 1 / 3, 1.0))


def test_asha_promotes_a_third_of_what_finished_at_each_share() -> None:
    strategy = Asha(SHARES, seed=0)
    first = strategy.ask(9)
    assert (first[:, 1] == 0).all()
    assert strategy._promoted(0).tolist() == []
    strategy.tell(first[:8], first[:8, :1] * 1.0)
    best = np.sort(first[:8, 0])
    assert sorted(strategy._promoted(0).tolist()) == [[int(i), 1] for i in best[:2]]  # 8 // 3
    asked = strategy.ask(3)
    assert asked[:, 1].tolist() == [1, 1, 0]
    assert strategy._promoted(0).tolist() == []
    strategy.tell(asked[:2], asked[:2, :1] * 1.0)
    assert strategy._promoted(1).tolist() == []  # two are no three
    strategy.tell(first[8:], first[8:, :1] * 1.0)
    (third,) = strategy._promoted(0)
    strategy.tell([third], [[float(third[0])]])
    assert strategy.ask(1).tolist() == [[int(np.sort(first[:, 0])[0]), 2]]


def test_halving_waits_for_its_cohort() -> None:
    """Nine designs, three of them at a third of a trial, the best of those in full."""
    strategy = make_strategy("halving", SHARES, seed=0)
    begun = []
    while len(begun) < 9:
        begun += strategy.ask(1).tolist()
    for row in begun[:8]:
        strategy.tell([row], [[float(row[0])]])
    assert strategy.ask(1)[0, 1] == 0  # one is not back yet: a new design instead
    strategy.tell([begun[8]], [[float(begun[8][0])]])
    best = sorted(row[0] for row in begun)[:3]
    middle = strategy.ask(3)
    assert sorted(middle.tolist()) == [[i, 1] for i in best]
    for row in middle[:2]:
        strategy.tell([row], [[-float(row[0])]])
    assert strategy.ask(1)[0, 1] == 0
    strategy.tell(middle[2:], -middle[2:, :1] * 1.0)
    assert strategy.ask(1).tolist() == [[max(best), 2]]  # the last became the first


def test_a_table_of_choices_by_hand() -> None:
    problem = Problem(cardinalities=np.array([2, 3]), goals=LOSS)
    table = ChoiceTable(problem, [])
    assert (table.owner.tolist(), table.start.tolist(), table.width) == ([0, 0, 1, 1, 1], [0, 2], 5)
    assert table.one_hot(np.array([[1, 2]])).tolist() == [[0, 1, 0, 0, 1]]
    assert table.rows(np.array([[3.0, 1, 0, 5, 2]])).tolist() == [[0, 1]]
    chance = table.probabilities(np.log(np.array([[1.0, 3, 2, 2, 4]])))
    assert chance.tolist() == [pytest.approx([0.25, 0.75, 0.25, 0.25, 0.5])]
    assert table.probabilities(np.full((1, 5), 1e4)).tolist() == [pytest.approx([0.5, 0.5, 1 / 3, 1 / 3, 1 / 3])]


def test_a_base_spreads_its_first_rows_over_strata_and_repairs_near_a_row() -> None:
    base = BaseStrategy(limited(), seed=0)
    opening = base.initial_rows(12)
    assert np.bincount(opening[:, 0]).tolist() == [4, 4, 4]
    assert (base.violation(opening) == 0).all()
    assert base.violation(np.array([[2, 2, 2, 2]])).tolist() == [8 / 3 - 1]
    assert len(BaseStrategy(BIG, seed=0).initial_rows(5)) == 0
    fixed = base.repaired(np.array([2, 1, 1, 1]))
    assert fixed.sum() <= 3
    assert np.abs(fixed - [2, 1, 1, 1]).sum() <= 4


def test_what_a_relaxation_adds_by_hand() -> None:
    """One objective: 10 becomes 8, a fifth. Two: (1, 1) beside (0, 2) and (2, 0), half a span from both, below 1.1."""
    now, then = np.array([[10.0], [12.0], [8.0]]), np.array([[10.0], [12.0], [8.0]])
    held, more = np.array([True, True, False]), np.array([True, True, True])
    assert _gain(now, held, then, more) == (pytest.approx(0.2), 2)
    assert _gain(now, held, then, held) == (0.0, None)
    assert _gain(now, ~more, then, more) == (math.inf, 2)
    worse = np.array([[10.0], [12.0], [11.0]])
    assert _gain(worse, held, worse, more) == (0.0, None)
    pair = np.array([[0.0, 2.0], [2.0, 0.0], [1.0, 1.0], [5.0, 5.0]])
    held, more = np.array([True, True, False, False]), np.array([True] * 4)
    before = 1.1 * 0.1 * 2 - 0.1 * 0.1
    after = before + (0.6 - 0.1) * (0.6 - 0.1)
    found, row = _gain(pair, held, pair, more)
    assert (found, row) == (pytest.approx(after / before - 1), 2)


def test_what_each_end_would_exchange() -> None:
    points = np.array([[0.0, 10.0], [1.0, 2.0], [4.0, 0.0]])
    words = _exchanges(points, points / [4.0, 10.0], 1, ["loss", "time"])
    assert words == [
        "the other 25 % in loss would cost 80 % in time",
        "the other 20 % in time would cost 75 % in loss",
    ]
    assert _exchanges(points, points / [4.0, 10.0], 0, ["loss", "time"]) == [
        "the other 100 % in time would cost 100 % in loss"
    ]


def test_importance_where_nothing_varies_and_around_given_rows() -> None:
    problem = Problem(cardinalities=np.array([4, 4]), goals=LOSS)
    flat = importance(problem, lambda rows: np.ones(len(rows)), seed=0)
    assert flat == {"variable 0": 0.0, "variable 1": 0.0}
    rows = problem.draw(2000, np.random.default_rng(0))
    found = importance(problem, lambda rows: rows[:, 1] * 5.0, seed=0, rows=rows)
    assert found["variable 1"] == pytest.approx(1.0, abs=0.08)
    assert (list(found), found["variable 0"]) == (["variable 1", "variable 0"], 0.0)


def test_designs_begin_within_the_limits_of_the_smallest_share() -> None:
    """Even designs keep the limit at the first share, odd ones at the others."""

    def free(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        odd, short = rows[:, 0] % 2 == 1, rows[:, 1] == 0
        return np.zeros((len(rows), 0)), np.where(odd == short, 1.0, -1.0)[:, None]

    problem = Problem(
        cardinalities=np.array([30, 3]),
        goals=LOSS,
        limits=(Limit(name="parity", free=True),),
        free=free,
        fidelities=(1 / 9, 1 / 3, 1.0),
    )
    asked = Asha(problem, seed=0).ask(10)
    assert (asked[:, 1] == 0).all()
    assert (asked[:, 0] % 2 == 0).all()


def test_gumbel_noise_draws_each_value_as_often_as_its_probability() -> None:
    """P(argmax of logits + noise) is their softmax (Gumbel 1954): of 0, 1 and 2 it is 0.09, 0.24 and 0.67."""
    table = ChoiceTable(Problem(cardinalities=np.array([3]), goals=LOSS), [])
    logits = np.array([0.0, 1.0, 2.0])
    drawn = table.rows(logits + gumbel(np.random.default_rng(0), (20_000, 3)))[:, 0]
    shares = np.exp(logits) / np.exp(logits).sum()
    assert np.bincount(drawn) / 20_000 == pytest.approx(shares, abs=0.01)
