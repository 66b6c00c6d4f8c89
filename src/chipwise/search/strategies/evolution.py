"""Regularised evolution: parents win tournaments, the oldest die, children differ by one mutation.

References:
    Real et al., Regularized Evolution for Image Classifier Architecture Search, AAAI 2019. With several objectives a
    tournament compares ranks of non-domination, then crowding; rows that break limits lose to rows that hold them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from chipwise.search.history import History
from chipwise.search.pareto import crowding, ranks
from chipwise.search.strategies.random_search import draw_new
from chipwise.search.strategy import Problem, Rows

_MUTATION_TRIES = 20


class Evolution:
    """Regularised evolution. See :class:`chipwise.search.strategy.Strategy`.

    Args:
        problem: What to search.
        seed: Of all random draws.
        population: Trials that may be parents: the latest ones.
        tournament: Members drawn for each parent.
    """

    def __init__(self, problem: Problem, *, seed: int, population: int = 50, tournament: int = 10) -> None:
        self.problem, self.history = problem, History(problem)
        self.population, self.tournament = population, tournament
        self._rng = np.random.default_rng(seed)

    def ask(self, count: int) -> Rows:
        """Children of the population; random rows until there is one."""
        grown = self.history.told + len(self.history.pending)
        chosen = np.zeros((0, len(self.problem.cardinalities)), np.int64)
        if grown >= self.population and len(self.history):
            chosen = self._children(count)
        self.history.asked(chosen)
        if len(chosen) < count:
            rest = draw_new(self.problem, self.history, count - len(chosen), self._rng)
            self.history.asked(rest)
            chosen = np.vstack([chosen, rest])
        return chosen

    def tell(self, rows: Rows, objectives: ArrayLike | None, violations: ArrayLike | None = None) -> None:
        """Adds trials to the population, whose oldest members leave."""
        self.history.tell(rows, objectives, violations)

    def _children(self, count: int) -> Rows:
        alive = slice(max(0, len(self.history) - self.population), None)
        rows, points = self.history.rows[alive], self.history.objectives[alive]
        excess = np.maximum(self.history.violations[alive], 0).sum(axis=1)
        order = np.lexsort((-crowding(points), ranks(points, excess)))
        place = np.empty(len(rows), np.int64)
        place[order] = np.arange(len(rows))
        found = rows[:0]
        for _ in range(_MUTATION_TRIES):
            entrants = self._rng.integers(0, len(rows), (count, min(self.tournament, len(rows))))
            parents = rows[entrants[np.arange(count), place[entrants].argmin(axis=1)]]
            found = np.vstack([found, self._mutated(parents)])
            found = found[self.history.is_new(found)]
            found = found[(self.problem.price(found)[1] <= 0).all(axis=1)]
            if len(found) >= count:
                break
        return found[:count]

    def _mutated(self, rows: Rows) -> Rows:
        if self.problem.neighbours is not None:
            return self.problem.canonicalise(self.problem.neighbours(rows, self._rng))
        rows, index = rows.copy(), np.arange(len(rows))
        column = self._rng.integers(0, rows.shape[1], len(rows))
        cardinality = self.problem.cardinalities[column]
        shift = 1 + (self._rng.random(len(rows)) * np.maximum(cardinality - 1, 0)).astype(np.int64)
        rows[index, column] = (rows[index, column] + shift) % cardinality
        return self.problem.canonicalise(rows)
