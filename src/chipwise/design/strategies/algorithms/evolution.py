"""Regularised evolution: tournaments choose parents, children differ by one mutation, the oldest members leave.

References:
    Real et al., Regularized Evolution for Image Classifier Architecture Search, AAAI 2019. With several objectives,
    a tournament compares non-domination ranks, then crowding; infeasible rows lose against feasible rows.
"""

from __future__ import annotations

import numpy as np

from chipwise.design.strategies.algorithms.base import BaseStrategy, mutated
from chipwise.design.strategies.pareto import crowding, ranks
from chipwise.design.strategies.strategy import Problem, Rows

_MUTATION_TRIES = 20


class Evolution(BaseStrategy):
    """Regularised evolution, as a :class:`chipwise.design.strategies.strategy.Strategy`.

    Args:
        problem: The search problem.
        seed: Random seed.
        population: Number of latest trials from which parents are chosen.
        tournament: Members sampled for each parent.
    """

    def __init__(self, problem: Problem, *, seed: int, population: int = 50, tournament: int = 10) -> None:
        super().__init__(problem, seed=seed)
        self.population, self.tournament = population, tournament

    def propose(self, count: int) -> Rows:
        """Children of the current population; no rows until the population is full."""
        if self.history.trial_count + len(self.history.pending) >= self.population and len(self.history):
            return self._children(count)
        return self.initial_rows(count)

    def _children(self, count: int) -> Rows:
        alive = slice(max(0, len(self.history) - self.population), None)
        rows, points = self.history.rows[alive], self.history.objectives[alive]
        excess = np.maximum(self.history.violations[alive], 0).sum(axis=1)
        order = np.lexsort((-crowding(points), ranks(points, excess)))
        place = np.empty(len(rows), np.int64)
        place[order] = np.arange(len(rows))
        found = rows[:0]
        for _ in range(_MUTATION_TRIES):
            entrants = self.rng.integers(0, len(rows), (count, min(self.tournament, len(rows))))
            parents = rows[entrants[np.arange(count), place[entrants].argmin(axis=1)]]
            found = self.usable(np.vstack([found, mutated(self.problem, parents, self.rng)]))
            if len(found) >= count:
                break
        return found[:count]
