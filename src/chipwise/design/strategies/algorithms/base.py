"""Base class of most strategies: keeps the history of trials, and completes proposals with random rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from chipwise.core.arrays import Float64Array
from chipwise.design.strategies.encoding import Encoder
from chipwise.design.strategies.history import History
from chipwise.design.strategies.pool import Pool
from chipwise.design.strategies.strategy import Problem, Rows

_REPAIR_ROUNDS, _MUTANTS = 40, 48
_INITIAL = 600  # rows sampled in each of two ways as candidates for the first trials
_DRAWS = 200  # batches sampled before the space is enumerated instead
_LISTED = 100_000  # largest space to enumerate if samples repeat


class BaseStrategy:
    """Implements :class:`chipwise.design.strategies.strategy.Strategy`; a subclass implements only :meth:`propose`.

    Free limits are those that need no trial, because the cost model computes them.

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
        """Proposes up to ``count`` rows; the caller removes duplicates and rows that exceed free limits."""
        raise NotImplementedError

    def ask(self, count: int) -> Rows:
        """Returns up to ``count`` new rows: proposed rows, and random rows if these are too few."""
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
        """Rows for the first trials, spread evenly over the strata within the free limits; empty if no limit is free.

        A search that starts only in the strata with the most feasible rows may never reach the best rows.
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
        """The canonical forms of ``rows``, without rows that are already known or that exceed the free limits."""
        found = self.problem.canonicalise(rows) if len(rows) else rows.reshape(0, len(self.problem.cardinalities))
        found = found[self.history.is_new(found)]
        return found[self.violation(found) <= 0]

    def violation(self, rows: Rows) -> Float64Array:
        """Sum of the violations of the free limits for each row, (n,)."""
        return np.asarray(np.maximum(self.problem.price(rows)[1], 0).sum(axis=1))

    def repaired(self, row: Rows) -> Rows:
        """Takes small steps from ``row`` (d,) towards the free limits; returns a usable row (1, d), or none (0, d)."""
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
    """Order (n,) in which groups take turns, with one member per turn.

    >>> round_robin(np.array([7, 7, 7, 5])).tolist()
    [3, 0, 1, 2]
    """
    order = np.argsort(groups, kind="stable")
    return np.asarray(order[np.argsort(places_in_groups(groups[order]), kind="stable")])


def places_in_groups(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """Position of each member within its group, (n,), from 0; members of a group must be adjacent.

    >>> places_in_groups(np.array([5, 7, 7, 7])).tolist()
    [0, 0, 1, 2]
    """
    begins = np.r_[True, np.diff(groups) > 0][: len(groups)]
    places = np.arange(len(groups))
    return np.asarray(places - np.maximum.accumulate(np.where(begins, places, 0)))


def mutated(problem: Problem, rows: Rows, rng: np.random.Generator) -> Rows:
    """Mutates each row to a canonical one: changes one variable, or calls the problem's ``neighbours`` if given."""
    if problem.neighbours is not None:
        return problem.canonicalise(problem.neighbours(rows, rng))
    rows, index = rows.copy(), np.arange(len(rows))
    column = rng.integers(0, rows.shape[1], len(rows))
    cardinality = problem.cardinalities[column]
    shift = 1 + (rng.random(len(rows)) * np.maximum(cardinality - 1, 0)).astype(np.int64)
    rows[index, column] = (rows[index, column] + shift) % cardinality
    return problem.canonicalise(rows)


def every_row(cardinalities: Rows) -> Rows:
    """All rows of a space, (product of cardinalities, d); the last variable changes fastest.

    >>> every_row(np.array([2, 2])).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    return np.indices(tuple(int(c) for c in cardinalities)).reshape(len(cardinalities), -1).T.astype(np.int64)


def draw_new(problem: Problem, history: History, count: int, rng: np.random.Generator) -> Rows:
    """Up to ``count`` random new rows; rows beyond limits that need no trial are used only if no others are found."""
    found = np.zeros((0, len(problem.cardinalities)), np.int64)
    spare = found
    for _ in range(_DRAWS):
        if len(found) >= count:
            return found[:count]
        drawn = problem.draw(max(32, count), rng)
        held = (problem.price(drawn)[1] <= 0).all(axis=1)
        found = np.vstack([found, drawn[held]])
        found = found[history.is_new(found)]
        if len(spare) < count:
            spare = np.vstack([spare, drawn[~held]])
    if problem.size() <= _LISTED:
        rows = problem.canonicalise(every_row(problem.cardinalities))
        rows = rows[rng.permutation(len(rows))]
        held = (problem.price(rows)[1] <= 0).all(axis=1)
        spare = np.vstack([rows[held], rows[~held]])
    rows = np.vstack([found, spare])
    return rows[history.is_new(rows)][:count]
