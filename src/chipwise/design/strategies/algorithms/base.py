"""Base class of most strategies: stores the history and completes proposals with random rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from chipwise.core.arrays import Float64Array
from chipwise.design.strategies.algorithms.random_search import draw_new
from chipwise.design.strategies.encoding import Encoder
from chipwise.design.strategies.history import History
from chipwise.design.strategies.pool import Pool
from chipwise.design.strategies.strategy import Problem, Rows

_REPAIR_ROUNDS, _MUTANTS = 40, 48
_INITIAL = 600  # rows sampled in each of two ways as candidates for the first trials


class BaseStrategy:
    """Implements :class:`chipwise.design.strategies.strategy.Strategy`; a subclass only implements :meth:`propose`.

    Args:
        problem: The search problem.
        seed: Random seed.
    """

    def __init__(self, problem: Problem, *, seed: int) -> None:
        self.problem, self.history = problem, History(problem)
        self.rng = np.random.default_rng(seed)
        self._seed = seed
        self._opening: Rows | None = None

    def propose(self, count: int) -> Rows:
        """Proposes up to ``count`` rows. The caller drops duplicates and rows that break free limits."""
        raise NotImplementedError

    def ask(self, count: int) -> Rows:
        """Up to ``count`` rows: proposed ones, completed with random ones."""
        chosen = self.usable(self.propose(count))[:count]
        self.history.mark_pending(chosen)
        if len(chosen) < count:
            rest = draw_new(self.problem, self.history, count - len(chosen), self.rng)
            self.history.mark_pending(rest)
            chosen = np.vstack([chosen, rest])
        return chosen

    def tell(self, rows: Rows, objectives: ArrayLike | None, violations: ArrayLike | None = None) -> None:
        """Adds results to the history."""
        self.history.tell(rows, objectives, violations)

    def initial_rows(self, count: int) -> Rows:
        """The first rows, distributed as evenly over the strata as the free limits allow; empty if no limit is free.

        A search that starts only where most feasible rows are may never reach the good ones.
        """
        if not self.problem.free_limits:
            return self.history.rows[:0]
        if self._opening is None:
            encoder = Encoder(self.problem, seed=self._seed)
            pool = Pool(self.problem, encoder, lambda rows, costs, violations: costs[:, :0], self._seed)
            pool.seed(_INITIAL)
            rows = pool.rows[pool.excess <= 0]
            rows = rows[self.rng.permutation(len(rows))]
            self._opening = rows[round_robin(encoder.strata(rows))]
        return self.usable(self._opening)[:count]

    def usable(self, rows: Rows) -> Rows:
        """The canonical forms of those ``rows`` that are new and keep the free limits."""
        found = self.problem.canonicalise(rows) if len(rows) else rows.reshape(0, len(self.problem.cardinalities))
        found = found[self.history.is_new(found)]
        return found[self.violation(found) <= 0]

    def violation(self, rows: Rows) -> Float64Array:
        """Total free violation of each row, (n,)."""
        return np.asarray(np.maximum(self.problem.price(rows)[1], 0).sum(axis=1))

    def repaired(self, row: Rows) -> Rows:
        """A usable row near ``row`` (d,), by small steps towards the free limits: (1, d); (0, d) if there is none."""
        near = self.problem.canonicalise(row)
        for _ in range(_REPAIR_ROUNDS):
            usable = self.usable(near)
            if len(usable):
                return usable[:1]
            near = np.vstack([near, mutated(self.problem, np.repeat(near[:8], _MUTANTS // len(near[:8]), 0), self.rng)])
            near = near[np.argsort(self.violation(near), kind="stable")]
            if self.violation(near[:1])[0] <= 0:  # within the limits but not new, so any neighbour is fine
                near = near[self.rng.permutation(len(near))]
            near = near[:_MUTANTS]
        return near[:0]


def round_robin(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """An order (n,) that takes one member of each group in turn.

    >>> round_robin(np.array([7, 7, 7, 5])).tolist()
    [3, 0, 1, 2]
    """
    order = np.argsort(groups, kind="stable")
    begins = np.r_[True, np.diff(groups[order]) > 0][: len(order)]
    since = np.arange(len(order)) - np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
    return np.asarray(order[np.argsort(since, kind="stable")])


def mutated(problem: Problem, rows: Rows, rng: np.random.Generator) -> Rows:
    """Each row with one variable changed (or changed by the problem's ``neighbours`` if given), canonical."""
    if problem.neighbours is not None:
        return problem.canonicalise(problem.neighbours(rows, rng))
    rows, index = rows.copy(), np.arange(len(rows))
    column = rng.integers(0, rows.shape[1], len(rows))
    cardinality = problem.cardinalities[column]
    shift = 1 + (rng.random(len(rows)) * np.maximum(cardinality - 1, 0)).astype(np.int64)
    rows[index, column] = (rows[index, column] + shift) % cardinality
    return problem.canonicalise(rows)
