"""StrategySuite: what every search strategy promises, tried on small problems.

Subclass it in a test module and return a strategy from ``make``; pytest then runs every check on it::

    class TestMyStrategy(StrategySuite):
        def make(self, problem, seed):
            return MyStrategy(problem, seed=seed)


    class TestMyPublishedStrategy(StrategySuite):
        name = "mine"  # as an entry point of the group chipwise.strategies calls it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.optim import Goal, Limit, Problem, Strategy, make_strategy
from chipwise.optim.strategy import Rows

_ROUNDS, _BATCH = 8, 5


def toy_problem(
    *, values: int = 4, variables: int = 6, limit: float | None = 0.7, expensive_limit: bool = False
) -> Problem:
    """Loss that falls and a cost that rises with every variable; the cost is free.

    Args:
        values: Of each variable.
        variables: How many.
        limit: Upper limit on the mean variable, as a share of its range; None for no limit.
        expensive_limit: Only a trial tells whether the limit holds.
    """
    limits = () if limit is None else (Limit(name="size", free=not expensive_limit),)

    def free(rows: Rows) -> tuple[Float64Array, Float64Array]:
        excess = toy_violations(rows, values, limit)
        return toy_objectives(rows)[:, 1:], excess[:, :0] if expensive_limit else excess

    return Problem(
        cardinalities=np.full(variables, values),
        goals=(Goal(name="loss"), Goal(name="cost", free=True)),
        limits=limits,
        free=free,
    )


def toy_objectives(rows: Rows) -> Float64Array:
    """Loss and cost of each row, (n, 2)."""
    weights = np.arange(1, rows.shape[1] + 1)
    return np.stack([10 / (1 + rows @ weights), 1.0 + rows.sum(axis=1)], axis=1)


def toy_violations(rows: Rows, values: int = 4, limit: float | None = 0.7) -> Float64Array:
    """How far each row is past the limit, (n, 1), or (n, 0) without one."""
    if limit is None:
        return np.zeros((len(rows), 0))
    share: Float64Array = rows.mean(axis=1) / (values - 1)
    return np.asarray(share / limit - 1)[:, None]


class StrategySuite:
    """The checks. Override :meth:`make`, or set ``name`` (and ``options``) of a strategy in the table.

    Attributes:
        name: The strategy's name, built in or of an entry point ``chipwise.strategies``.
        options: What it is made with; a small population or few initial trials bring its ideas into the checks.
    """

    name: str = ""
    options: Mapping[str, Any] = {}

    def make(self, problem: Problem, seed: int) -> Strategy:
        """A fresh strategy for ``problem``."""
        if not self.name:
            raise NotImplementedError("set `name`, or override `make`")
        return make_strategy(self.name, problem, seed=seed, **self.options)

    def _run(self, strategy: Strategy, rounds: int = _ROUNDS, count: int = _BATCH) -> list[Rows]:
        asked = []
        for _ in range(rounds):
            rows = strategy.ask(count)
            strategy.tell(rows, toy_objectives(rows), toy_violations(rows))
            asked.append(rows)
        return asked

    def test_rows_are_in_the_space_and_never_repeat(self) -> None:
        """Every row asked for is a new integer row within the cardinalities."""
        problem = toy_problem()
        rows = np.vstack(self._run(self.make(problem, 1)))
        assert rows.shape == (_ROUNDS * _BATCH, 6)
        assert np.issubdtype(rows.dtype, np.integer)
        assert ((rows >= 0) & (rows < problem.cardinalities)).all()
        assert len(np.unique(rows, axis=0)) == len(rows)

    def test_the_same_seed_replays(self) -> None:
        """Seed and results decide everything."""
        first, second = (self._run(self.make(toy_problem(), 3)) for _ in range(2))
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))

    def test_another_seed_asks_other_rows(self) -> None:
        """Seeds are not ignored."""
        first, second = (np.vstack(self._run(self.make(toy_problem(), seed))) for seed in (3, 4))
        assert not np.array_equal(first, second)

    def test_free_limits_are_kept(self) -> None:
        """A strategy does not spend trials on rows that the cost model already rules out."""
        rows = np.vstack(self._run(self.make(toy_problem(), 5)))
        assert (toy_violations(rows) <= 0).all()

    def test_failed_trials_are_survived(self) -> None:
        """All of a batch, or single rows, may fail; failed rows are not asked for again."""
        strategy = self.make(toy_problem(), 2)
        seen = []
        for turn in range(_ROUNDS):
            rows = strategy.ask(_BATCH)
            seen.append(rows)
            values = toy_objectives(rows)
            values[turn % _BATCH] = np.nan
            strategy.tell(rows, None if turn < 2 else values)
        found = np.vstack(seen)
        assert len(found) == _ROUNDS * _BATCH
        assert len(np.unique(found, axis=0)) == len(found)

    def test_nothing_but_failures(self) -> None:
        """Asking goes on when every trial failed."""
        strategy = self.make(toy_problem(), 2)
        for _ in range(_ROUNDS):
            rows = strategy.ask(_BATCH)
            assert len(rows) == _BATCH
            strategy.tell(rows, None)

    def test_dear_limits_and_infeasible_trials(self) -> None:
        """Where only trials tell whether a limit holds, rows that break it teach and do not stop the search."""
        problem = toy_problem(expensive_limit=True, limit=0.3)
        strategy, broken = self.make(problem, 6), 0
        for _ in range(_ROUNDS):
            rows = strategy.ask(_BATCH)
            excess = toy_violations(rows, limit=0.3)
            broken += int((excess > 0).sum())
            strategy.tell(rows, toy_objectives(rows), excess)
        assert 0 < broken < _ROUNDS * _BATCH

    def test_nothing_but_infeasible_trials(self) -> None:
        """Asking goes on, without repeats, when every trial broke the limit."""
        strategy = self.make(toy_problem(expensive_limit=True), 3)
        seen = []
        for _ in range(_ROUNDS):
            rows = strategy.ask(_BATCH)
            strategy.tell(rows, toy_objectives(rows), 1.0 + rows.mean(axis=1, keepdims=True))
            seen.append(rows)
        found = np.vstack(seen)
        assert len(np.unique(found, axis=0)) == len(found) == _ROUNDS * _BATCH

    def test_workers_tell_in_any_order(self) -> None:
        """Four workers ask one by one and tell whenever they are done, the latest first; no two try the same."""
        strategy = self.make(toy_problem(), 4)
        out: list[Rows] = []
        seen = []
        for turn in range(_ROUNDS * _BATCH):
            out.append(strategy.ask(1))
            seen.append(out[-1])
            if len(out) == 4:
                rows = out.pop(-1 if turn % 3 else 0)
                strategy.tell(rows, toy_objectives(rows))
        found = np.vstack(seen)
        assert len(np.unique(found, axis=0)) == len(found) == _ROUNDS * _BATCH

    def test_a_told_row_is_not_asked_for(self) -> None:
        """Rows that others tried count as known, also when they are told twice."""
        problem = toy_problem(values=2, variables=4, limit=None)
        strategy = self.make(problem, 1)
        given = np.array([[0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 1]])
        for _ in range(2):
            strategy.tell(given, toy_objectives(given))
        rows = _ask_all(strategy, 4)
        assert len(rows) == 16 - 3
        assert not (rows[:, None] == given[None]).all(axis=2).any()

    def test_rows_on_their_way_are_not_asked_for_again(self) -> None:
        """Many workers may ask before any is told."""
        strategy = self.make(toy_problem(), 1)
        rows = np.vstack([strategy.ask(3) for _ in range(6)])
        assert len(np.unique(rows, axis=0)) == 18

    def test_a_finite_space_is_exhausted(self) -> None:
        """All rows are asked for once, then none; asking for more than there are is no error."""
        problem = toy_problem(values=2, variables=4, limit=None)
        strategy = self.make(problem, 9)
        rows = _ask_all(strategy, 5)
        assert len(rows) == 16
        assert len(np.unique(rows, axis=0)) == 16
        assert strategy.ask(3).shape == (0, 4)

    def test_more_asked_for_than_there_is(self) -> None:
        """One ask for more rows than the space has gives them all."""
        strategy = self.make(toy_problem(values=2, variables=3, limit=None), 9)
        assert len(strategy.ask(100)) == 8

    def test_a_space_of_one_row(self) -> None:
        """Nothing to choose is no error."""
        strategy = self.make(toy_problem(values=1, variables=3, limit=None), 0)
        assert strategy.ask(2).tolist() == [[0, 0, 0]]
        strategy.tell(np.zeros((1, 3), int), [[1.0, 2.0]])
        assert len(strategy.ask(2)) == 0

    def test_a_restart_goes_on_from_the_tells(self) -> None:
        """A fresh strategy that is told what an earlier one learnt asks for new rows, the same each time."""
        asked = np.vstack(self._run(self.make(toy_problem(), 7)))
        again = []
        for _ in range(2):
            strategy = self.make(toy_problem(), 7)
            strategy.tell(asked, toy_objectives(asked), toy_violations(asked))
            again.append(strategy.ask(_BATCH))
        assert np.array_equal(again[0], again[1])
        assert len(np.unique(np.vstack([asked, again[0]]), axis=0)) == len(asked) + _BATCH

    def test_maximised_goals_mirror_minimised_ones(self) -> None:
        """Turning the sign and the direction of an objective changes nothing."""
        plain = toy_problem()
        mirrored = Problem(
            cardinalities=plain.cardinalities,
            goals=(Goal(name="gain", direction="maximize"), Goal(name="cost", free=True)),
            limits=plain.limits,
            free=plain.free,
        )
        one, two = self.make(plain, 8), self.make(mirrored, 8)
        for _ in range(_ROUNDS):
            rows, other = one.ask(_BATCH), two.ask(_BATCH)
            assert np.array_equal(rows, other)
            values = toy_objectives(rows)
            one.tell(rows, values)
            two.tell(rows, values * [-1, 1])


def _ask_all(strategy: Strategy, count: int) -> Rows:
    found = []
    while len(rows := strategy.ask(count)):
        found.append(rows)
        strategy.tell(rows, toy_objectives(rows))
    return np.vstack(found)
