"""A pool of thousands of candidate rows with known costs that need no trial, evolved towards good rows.

A stratum is a set of rows that agree in the few variables with the largest effect on costs, such as width and depth.
The pool is filled with rows from the whole space. In every stratum with few feasible rows, the rows with the lowest
violations are then mutated, in several rounds. This finds feasible regions as small as a few thousandths of the space,
before the first trial. A stratum without a feasible row is given up after some rounds without progress.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import Float64Array
from chipwise.design.strategies.encoding import Encoder
from chipwise.design.strategies.strategy import Problem, Rows

_PER_STRATUM = 40  # a stratum with fewer feasible rows than this is bred for feasibility
_REPAIR_ROUNDS = 25
_STALE_ROUNDS = 8  # rounds without progress after which a stratum counts as infeasible


class Pool:
    """Distinct canonical rows with their free costs (those that need no trial).

    Attributes:
        rows: Canonical rows, (n, d).
        costs: Free goals, to be minimised, (n, m_free).
        violations: Violations of the free limits, (n, k_free).
        columns: Inputs of the quality model, (n, p).
    """

    def __init__(
        self,
        problem: Problem,
        encoder: Encoder,
        columns: Callable[[Rows, Float64Array, Float64Array], Float64Array],
        seed: int,
    ) -> None:
        self.problem, self.encoder, self._columns = problem, encoder, columns
        self.rng = np.random.default_rng([seed, 3])
        self.rows: Rows = np.zeros((0, len(problem.cardinalities)), np.int64)
        self.costs, self.violations = problem.price(self.rows)
        self.columns = columns(self.rows, self.costs, self.violations)
        self._known: set[bytes] = set()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def excess(self) -> Float64Array:
        """Total violation of the free limits by each row, (n,); 0 if all limits are met."""
        return np.asarray(np.maximum(self.violations, 0).sum(axis=1))

    def seed(self, count: int) -> None:
        """Fills the pool with rows from the whole space, then breeds in strata that have too few feasible rows."""
        self.add(self.problem.draw(count, self.rng))
        self.add(self._levelled(count))
        self._repair()

    def _levelled(self, count: int) -> Rows:
        """Random rows whose variables are correlated, so that sums over many variables cover their full range."""
        top = self.problem.cardinalities - 1
        level = self.rng.random((count, 1))
        rows = np.rint(top * (level + 0.35 * self.rng.standard_normal((count, len(top)))))
        rows = np.clip(rows, 0, top).astype(np.int64)
        free = self.encoder.strata_columns
        rows[:, free] = (self.rng.random((count, len(free))) * self.problem.cardinalities[free]).astype(np.int64)
        if self.problem.sample is not None:  # only the problem knows conditions between variables
            drawn = self.problem.draw(count, self.rng)
            swap = self.rng.random(rows.shape) < 0.5
            rows = np.where(swap, rows, drawn)
        return self.problem.canonicalise(rows)

    def _repair(self) -> None:
        """Breeds rows for low violation in every stratum that has few rows within the free limits."""
        if not self.violations.shape[1]:
            return
        stale: dict[int, int] = {}
        least: dict[int, float] = {}
        for _ in range(_REPAIR_ROUNDS):
            strata, excess = self.encoder.strata(self.rows), self.excess
            parents = []
            for stratum in np.unique(strata):
                members = np.flatnonzero(strata == stratum)
                held = int((excess[members] <= 0).sum())
                now = float(excess[members].min())
                stale[stratum] = 0 if now < least.get(stratum, np.inf) else stale.get(stratum, 0) + 1
                least[stratum] = now
                if held < _PER_STRATUM and (held or stale[stratum] < _STALE_ROUNDS):
                    parents.append(members[np.argsort(excess[members], kind="stable")[:20]])
            if not parents:
                return
            chosen = self.rng.choice(np.concatenate(parents), 40 * len(parents))
            self.add(self._mutated(self.rows[chosen], keep_strata=True))

    def breed(self, parents: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """Adds children of ``parents`` and returns their indices; adjacent ``parents`` must be similar."""
        rows, n = self.rows[parents], len(parents)
        first = self.rng.integers(0, n, count)
        other = np.clip(first + self.rng.integers(-8, 9, count), 0, n - 1)
        mixed = np.where(self.rng.random((count, rows.shape[1])) < 0.5, rows[first], rows[other])
        third = count // 3
        children = np.vstack([self._mutated(mixed[:third]), self._swapped(rows[first[third : 2 * third]])])
        children = np.vstack([children, self._mutated(rows[first[2 * third :]])])
        return self.add(children)

    def _mutated(self, rows: Rows, *, keep_strata: bool = False) -> Rows:
        """Copies of the rows with one or a few variables changed, mostly by one step."""
        if self.problem.neighbours is not None:
            return self.problem.canonicalise(self.problem.neighbours(rows, self.rng))
        n, d = rows.shape
        rate = self.rng.choice([1.0, 1.0, 2.0, 4.0], n)[:, None] / d
        moved = self.rng.random((n, d)) < rate
        moved[np.arange(n), self.rng.integers(0, d, n)] = True
        if keep_strata and len(self.encoder.strata_columns) < d:
            moved[:, self.encoder.strata_columns] = False
        step = rows + self.rng.choice([-1, 1], (n, d))
        anywhere = (self.rng.random((n, d)) * self.problem.cardinalities).astype(np.int64)
        new = np.where(self.rng.random((n, d)) < 0.7, step, anywhere)
        return self.problem.canonicalise(np.where(moved, np.clip(new, 0, self.problem.cardinalities - 1), rows))

    def _swapped(self, rows: Rows) -> Rows:
        """Copies of the rows with one variable a step higher and another a step lower, so that their sum is kept."""
        if self.problem.neighbours is not None:
            return self._mutated(rows)
        rows, index = rows.copy(), np.arange(len(rows))
        for _ in range(2):
            up, down = self.rng.integers(0, rows.shape[1], (2, len(rows)))
            rows[index, up] += 1
            rows[index, down] -= 1
            if self.rng.random() < 0.5:
                break
        return self.problem.canonicalise(np.clip(rows, 0, self.problem.cardinalities - 1))

    def add(self, rows: Rows) -> NDArray[np.int64]:
        """Adds the canonical ``rows`` that are not in the pool yet, with their free costs; returns their indices."""
        fresh = []
        for i, row in enumerate(np.ascontiguousarray(rows)):
            key = row.tobytes()
            if key not in self._known:
                self._known.add(key)
                fresh.append(i)
        start = len(self.rows)
        if fresh:
            new = rows[fresh]
            costs, violations = self.problem.price(new)
            self.rows = np.vstack([self.rows, new])
            self.costs, self.violations = np.vstack([self.costs, costs]), np.vstack([self.violations, violations])
            self.columns = np.vstack([self.columns, self._columns(new, costs, violations)])
        return np.arange(start, len(self.rows))

    def keep(self, index: NDArray[np.int64]) -> None:
        """Removes all rows except those at ``index``."""
        self.rows, self.costs = self.rows[index], self.costs[index]
        self.violations, self.columns = self.violations[index], self.columns[index]
        self._known = {row.tobytes() for row in np.ascontiguousarray(self.rows)}
