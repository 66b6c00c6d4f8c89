"""Search by a given score: explores the front of score and costs that need no trial; learns nothing from trials.

The score is the problem's prior, such as a parameter count, a scaling law or synaptic flow. Without a prior, designs
with higher costs get a better score. Trials do not change which designs are proposed.

References:
    Javaheripi et al., LiteTransformerSearch, NeurIPS 2022: decoder parameters as a proxy of perplexity.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import Float64Array
from chipwise.design.strategies.acquisition import adding_most, frame
from chipwise.design.strategies.algorithms.base import BaseStrategy
from chipwise.design.strategies.encoding import Encoder
from chipwise.design.strategies.pareto import crowding, ranks
from chipwise.design.strategies.pool import Pool
from chipwise.design.strategies.strategy import Problem, Rows
from chipwise.errors import InputError

_SHORTLIST = 400  # rows of the first non-domination layers from which a batch is chosen
_SEEDED, _GENERATIONS, _CHILDREN, _PARENTS, _KEPT = 3000, 30, 500, 150, 3000


class Proxy(BaseStrategy):
    """Chooses designs by a score instead of by trials.

    Raises:
        InputError: The problem has neither a prior nor an objective or limit that is free (needs no trial).
    """

    def __init__(self, problem: Problem, *, seed: int) -> None:
        super().__init__(problem, seed=seed)
        if problem.prior is None and not problem.free_goals and not problem.free_limits:
            raise InputError(
                "the strategy 'proxy' needs a score: a prior, or an objective or constraint that is computed without a "
                "trial (free)"
            )
        self._encoder = Encoder(problem, seed=seed)
        self._pool = Pool(problem, self._encoder, self._points, seed)
        self._bred = False

    def propose(self, count: int) -> Rows:
        """Rows spread over the Pareto front of the score and the free costs, then rows of the next fronts."""
        if not self._bred:
            self._breed()
        pool = self._pool
        held = np.flatnonzero(pool.excess <= 0)
        held = held[self.history.is_new(pool.rows[held])]
        if not len(held):
            return pool.rows[:0]
        order = np.lexsort((-crowding(pool.columns[held]), ranks(pool.columns[held], most=12)))
        held = held[order[: max(_SHORTLIST, 2 * count)]]
        points = pool.columns[held]
        tried = np.vstack([self.history.rows, self.history.pending])
        front = self._points(tried, *self.problem.price(tried))
        low, span = frame(points)
        scaled, front = (points - low) / span, (front - low) / span
        chosen = adding_most(scaled, front, expensive=[0], doubt=1e-9, count=count)
        return pool.rows[held[chosen]]

    def _points(self, rows: Rows, costs: Float64Array, violations: Float64Array) -> Float64Array:
        """The score and the free goals, all to be minimised, (n, 1 + m_free)."""
        if self.problem.prior is not None:
            score = self.problem.prior_values(rows)
        else:
            known = np.hstack([np.abs(costs), violations + 1.0])
            score = -np.log(np.maximum(known, 1e-12)).sum(axis=1)
        return np.column_stack([score, costs])

    def _breed(self) -> None:
        self._bred = True
        pool = self._pool
        pool.seed(_SEEDED)
        for _ in range(_GENERATIONS):
            best = self._order(pool)[:_PARENTS]
            parents = best[np.lexsort((pool.columns[best, -1], self._encoder.strata(pool.rows[best])))]
            pool.breed(parents, _CHILDREN)
            if len(pool) > 2 * _KEPT:
                pool.keep(np.sort(self._order(pool)[:_KEPT]))

    def _order(self, pool: Pool) -> NDArray[np.int64]:
        rank = ranks(pool.columns, pool.excess, most=6)
        return np.lexsort((self.rng.random(len(pool)), rank))
