"""Successive halving and ASHA: many short trials, and longer trials for the best designs.

Both need a problem with fidelities, that is, shares of a full trial. Designs begin with the smallest share; the best of
every ``eta`` designs is promoted to the next share. Successive halving promotes when a whole cohort has finished, ASHA
whenever a worker is idle. With several objectives, designs are ranked by non-domination, then crowding. Without
fidelities every trial is full and nothing can be promoted, so both become random search.

References:
    Jamieson and Talwalkar, Non-stochastic Best Arm Identification, AISTATS 2016; Li et al., A System for Massively
    Parallel Hyperparameter Tuning, MLSys 2020.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from chipwise.design.strategies.algorithms.base import draw_new
from chipwise.design.strategies.history import History
from chipwise.design.strategies.pareto import crowding, ranks
from chipwise.design.strategies.strategy import Problem, Rows
from chipwise.design.strategies.wrappers import at_share, designs


class Asha:
    """Asynchronous successive halving (ASHA): promotes the best of the results so far.

    Args:
        problem: The search problem.
        seed: Random seed.
        eta: One design out of every ``eta`` is promoted.
    """

    fidelity_aware = True

    def __init__(self, problem: Problem, *, seed: int, eta: int = 3) -> None:
        self.problem, self.eta = problem, eta
        self.history = History(problem)
        self._rungs = max(1, len(problem.fidelities))
        self._designs = designs(problem, 0) if problem.fidelities else problem
        self._begun = History(self._designs)
        self._rng = np.random.default_rng(seed)

    def ask(self, count: int) -> Rows:
        """Promoted rows, longest trials first, then new designs at the smallest share of a full trial."""
        found = self.history.rows[:0]
        for rung in range(self._rungs - 2, -1, -1):
            rows = self._promoted(rung)[: count - len(found)]
            self.history.mark_pending(rows)
            found = np.vstack([found, rows])
        if len(found) < count:
            new = draw_new(self._designs, self._begun, count - len(found), self._rng)
            self._begun.mark_pending(new)
            rows = at_share(new, 0) if self.problem.fidelities else new
            self.history.mark_pending(rows)
            found = np.vstack([found, rows])
        return found

    def tell(self, rows: Rows, objectives: ArrayLike | None, violations: ArrayLike | None = None) -> None:
        """Adds results of trials of any fidelity."""
        self.history.tell(rows, objectives, violations)
        found = self.problem.canonicalise(rows)
        self._begun.mark_pending(found[:, :-1] if self.problem.fidelities else found)

    def _promoted(self, rung: int) -> Rows:
        """Rows at the next share for the designs that are promoted from ``rung``."""
        at = np.flatnonzero(self.history.rows[:, -1] == rung)
        return self._best(at, len(at) // self.eta, rung)

    def _best(self, at: NDArray[np.int64], most: int, rung: int) -> Rows:
        """The best ``most`` of the trials with indices ``at``, as new rows at the next share of a full trial."""
        rows = self._chosen(at, most, rung)
        return rows[self.history.is_new(rows)]

    def _chosen(self, at: NDArray[np.int64], most: int, rung: int) -> Rows:
        points = self.history.objectives[at]
        excess = np.maximum(self.history.violations[at], 0).sum(axis=1)
        order = np.lexsort((-crowding(points), ranks(points, excess)))[:most] if len(at) else at
        return at_share(self.history.rows[at[order], :-1], rung + 1)


class SuccessiveHalving(Asha):
    """Successive halving. Designs are grouped into cohorts in the order in which their first results arrive.

    Args:
        problem: The search problem.
        seed: Random seed.
        eta: One design out of every ``eta`` is promoted.
    """

    def _promoted(self, rung: int) -> Rows:
        cohort = self.eta ** (self._rungs - 1)
        begun = np.flatnonzero(self.history.rows[:, -1] == 0)
        rows = [self._best_of(begun[i : i + cohort], rung) for i in range(0, len(begun) // cohort * cohort, cohort)]
        return np.vstack([self.history.rows[:0], *rows])

    def _best_of(self, members: NDArray[np.int64], rung: int) -> Rows:
        """Rows to promote from ``rung`` in one cohort; none until all its members on that rung have finished."""
        pending = {row.tobytes() for row in self.history.pending}
        for level in range(rung + 1):
            most = self.eta ** (self._rungs - 2 - level)
            rows = self._best(members, most, level)
            if level == rung:
                return rows
            if len(rows):  # some have not been requested yet
                return rows[:0]
            chosen = self._chosen(members, most, level)
            if any(row.tobytes() in pending for row in chosen):
                return rows[:0]
            members = self._trained(chosen)
        raise AssertionError("the loop returns at its last level")

    def _trained(self, rows: Rows) -> NDArray[np.int64]:
        wanted = {row.tobytes() for row in rows}
        return np.array([i for i, row in enumerate(self.history.rows) if row.tobytes() in wanted], np.int64)
