"""StrategySuite: the contract of search strategies, checked on small problems.

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
from chipwise.design.strategies.algorithms import make_strategy
from chipwise.design.strategies.strategy import Goal, Limit, Problem, Rows, Strategy

_ROUNDS, _BATCH = 8, 5


def toy_problem(
    *, values: int = 4, variables: int = 6, limit: float | None = 0.7, expensive_limit: bool = False
) -> Problem:
    """A problem whose loss falls and whose cost rises with each variable. The cost is known without a trial.

    Args:
        values: Number of values of each variable.
        variables: Number of variables.
        limit: Upper limit on the mean of the variables, as a share of their range; None for no limit.
        expensive_limit: Whether the limit's value is only known after a trial.
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
    """By how much each row exceeds the limit, (n, 1), or (n, 0) without a limit."""
    if limit is None:
        return np.zeros((len(rows), 0))
    share: Float64Array = rows.mean(axis=1) / (values - 1)
    return np.asarray(share / limit - 1)[:, None]


class StrategySuite:
    """Checks that every strategy must pass.

    Override :meth:`make`, or set ``name`` (and ``options``) of a registered strategy.

    Attributes:
        name: Name of a built-in strategy or of an entry point in ``chipwise.strategies``.
        options: Constructor arguments; use a small population or few initial trials, so that the checks exercise the
            algorithm.
    """

    name: str = ""
    options: Mapping[str, Any] = {}

    def make(self, problem: Problem, seed: int) -> Strategy:
        """A new strategy for ``problem``."""
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
        """Each proposed row is new, and consists of integers below the cardinalities of the variables."""
        problem = toy_problem()
        rows = np.vstack(self._run(self.make(problem, 1)))
        assert rows.shape == (_ROUNDS * _BATCH, 6), (
            f"ask(5) must return 5 rows while the space has new ones: fill up with draw_new; got {rows.shape} in all"
        )
        assert np.issubdtype(rows.dtype, np.integer), f"rows must be integers, not {rows.dtype}"
        assert ((rows >= 0) & (rows < problem.cardinalities)).all(), "a value is not below its variable's cardinality"
        _assert_distinct(rows)

    def test_the_same_seed_replays(self) -> None:
        """The proposals depend only on the seed and on the results of trials."""
        first, second = (self._run(self.make(toy_problem(), 3)) for _ in range(2))
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True)), (
            "two runs with one seed differ: draw every random number from a generator seeded with `seed`"
        )

    def test_another_seed_asks_other_rows(self) -> None:
        """Different seeds give different proposals."""
        first, second = (np.vstack(self._run(self.make(toy_problem(), seed))) for seed in (3, 4))
        assert not np.array_equal(first, second), "seeds 3 and 4 propose the same rows: the seed is ignored"

    def test_free_limits_are_kept(self) -> None:
        """No proposed row breaks a limit that can be computed without a trial (a free limit)."""
        rows = np.vstack(self._run(self.make(toy_problem(), 5)))
        assert (toy_violations(rows) <= 0).all(), (
            "a proposed row breaks a free limit: keep rows for which problem.price(rows)[1] <= 0 (BaseStrategy.usable)"
        )

    def test_failed_trials_are_survived(self) -> None:
        """The strategy continues after trials fail, singly or as a batch, and does not propose failed rows again."""
        strategy = self.make(toy_problem(), 2)
        seen = []
        for turn in range(_ROUNDS):
            rows = strategy.ask(_BATCH)
            seen.append(rows)
            values = toy_objectives(rows)
            values[turn % _BATCH] = np.nan
            strategy.tell(rows, None if turn < 2 else values)
        found = np.vstack(seen)
        assert len(found) == _ROUNDS * _BATCH, "ask returned too few rows after failed trials"
        _assert_distinct(found)

    def test_nothing_but_failures(self) -> None:
        """The strategy continues to propose rows even if each trial has failed."""
        strategy = self.make(toy_problem(), 2)
        for _ in range(_ROUNDS):
            rows = strategy.ask(_BATCH)
            assert len(rows) == _BATCH, "ask must return rows even if all trials failed so far: propose random rows"
            strategy.tell(rows, None)

    def test_expensive_limits_and_infeasible_trials(self) -> None:
        """After rows break a limit that only trials reveal, the strategy also proposes rows that meet the limit."""
        problem = toy_problem(expensive_limit=True, limit=0.3)
        strategy, broken = self.make(problem, 6), 0
        for _ in range(_ROUNDS):
            rows = strategy.ask(_BATCH)
            excess = toy_violations(rows, limit=0.3)
            broken += int((excess > 0).sum())
            strategy.tell(rows, toy_objectives(rows), excess)
        total = _ROUNDS * _BATCH
        assert broken > 0, (
            f"none of {total} rows broke a limit that only trials reveal, although random rows would: does the "
            f"strategy treat the limit as free?"
        )
        assert broken < total, (
            f"all of {total} rows broke a limit that only trials reveal: learn from the violations passed to tell, and "
            "prefer parents that meet it"
        )

    def test_nothing_but_infeasible_trials(self) -> None:
        """If each trial breaks the limit, the strategy continues to propose rows and repeats none."""
        strategy = self.make(toy_problem(expensive_limit=True), 3)
        seen = []
        for _ in range(_ROUNDS):
            rows = strategy.ask(_BATCH)
            strategy.tell(rows, toy_objectives(rows), 1.0 + rows.mean(axis=1, keepdims=True))
            seen.append(rows)
        found = np.vstack(seen)
        assert len(found) == _ROUNDS * _BATCH, "ask returned too few rows although no trial met the limit"
        _assert_distinct(found)

    def test_workers_tell_in_any_order(self) -> None:
        """Four workers get different rows, even if their results arrive in a different order."""
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
        assert len(found) == _ROUNDS * _BATCH, "ask(1) returned no row while results were pending"
        _assert_distinct(found)

    def test_a_told_row_is_not_asked_for(self) -> None:
        """Rows whose results were passed to ``tell`` are not proposed, even if the results are passed twice."""
        problem = toy_problem(values=2, variables=4, limit=None)
        strategy = self.make(problem, 1)
        given = np.array([[0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 1]])
        for _ in range(2):
            strategy.tell(given, toy_objectives(given))
        rows = _ask_all(strategy, 4)
        assert not (rows[:, None] == given[None]).all(axis=2).any(), "ask returned a row that tell had received before"
        assert len(rows) == 16 - 3, f"all 13 rows without a result must be proposed; got {len(rows)}"

    def test_rows_on_their_way_are_not_asked_for_again(self) -> None:
        """Rows whose results are still pending are not proposed again."""
        strategy = self.make(toy_problem(), 1)
        rows = np.vstack([strategy.ask(3) for _ in range(6)])
        _assert_distinct(rows)

    def test_a_finite_space_is_exhausted(self) -> None:
        """Each row of a finite space is proposed once; afterwards no rows are proposed."""
        problem = toy_problem(values=2, variables=4, limit=None)
        strategy = self.make(problem, 9)
        rows = _ask_all(strategy, 5)
        assert len(rows) == 16, f"a space of 16 rows must be exhausted, not left at {len(rows)}: fill up with draw_new"
        _assert_distinct(rows)
        assert strategy.ask(3).shape == (0, 4), "ask must return an array of shape (0, d) when no row is left"

    def test_more_asked_for_than_there_is(self) -> None:
        """If more rows are requested than the space has, all rows of the space are returned."""
        strategy = self.make(toy_problem(values=2, variables=3, limit=None), 9)
        assert len(strategy.ask(100)) == 8, "ask(100) of a space of 8 rows must return all 8"

    def test_a_space_of_one_row(self) -> None:
        """A space of a single row is not an error."""
        strategy = self.make(toy_problem(values=1, variables=3, limit=None), 0)
        assert strategy.ask(2).tolist() == [[0, 0, 0]]
        strategy.tell(np.zeros((1, 3), int), [[1.0, 2.0]])
        assert len(strategy.ask(2)) == 0

    def test_a_restart_goes_on_from_the_tells(self) -> None:
        """Given the results of an earlier strategy, a new strategy proposes new rows, and always the same ones."""
        asked = np.vstack(self._run(self.make(toy_problem(), 7)))
        again = []
        for _ in range(2):
            strategy = self.make(toy_problem(), 7)
            strategy.tell(asked, toy_objectives(asked), toy_violations(asked))
            again.append(strategy.ask(_BATCH))
        assert np.array_equal(again[0], again[1]), "two restarts with the same results propose different rows"
        assert len(again[0]) == _BATCH, "a restarted strategy proposes too few rows"
        _assert_distinct(np.vstack([asked, again[0]]))

    def test_maximised_goals_mirror_minimised_ones(self) -> None:
        """Maximising an objective gives the same proposals as minimising its negative."""
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
            assert np.array_equal(rows, other), "negating a goal and maximising it changes the rows: use to_minimise"
            values = toy_objectives(rows)
            one.tell(rows, values)
            two.tell(rows, values * [-1, 1])


def _assert_distinct(rows: Rows) -> None:
    repeated = len(rows) - len(np.unique(rows, axis=0))
    assert not repeated, f"{repeated} of {len(rows)} rows were proposed twice: History.is_new tells which rows are new"


def _ask_all(strategy: Strategy, count: int) -> Rows:
    found = []
    while len(rows := strategy.ask(count)):
        found.append(rows)
        strategy.tell(rows, toy_objectives(rows))
    return np.vstack(found)
