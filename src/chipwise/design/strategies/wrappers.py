"""Wrappers that add support for soft limits and fidelities to every strategy.

A wrapper is itself a strategy. The strategy that it wraps searches a simpler problem: one with only hard limits, or one
with only full trials.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from chipwise.core.arrays import Float64Array
from chipwise.design.strategies.strategy import FreeCosts, Goal, Problem, Rows, Strategy
from chipwise.errors import InputError

Make = Callable[[Problem], Strategy]


class SoftLimits:
    """Wrapper that adds the penalties of soft limits to the first objective.

    Raises:
        InputError: The first objective needs no trial but a soft limit does, so the penalised objective would need one.
    """

    def __init__(self, problem: Problem, make: Make) -> None:
        self.problem = problem
        self._soft = [i for i, limit in enumerate(problem.limits) if limit.penalty is not None]
        self._hard = [i for i, limit in enumerate(problem.limits) if limit.penalty is None]
        self._price = np.array([problem.limits[i].penalty for i in self._soft], float)
        first = problem.goals[0]
        if first.free and any(not problem.limits[i].free for i in self._soft):
            raise InputError(
                f"the first objective, {first.name}, is computed without trials, but the penalty of a soft limit "
                "needs trials: make an objective that needs trials the first one"
            )
        self._inner = make(
            dataclasses.replace(
                problem,
                limits=tuple(problem.limits[i] for i in self._hard),
                free=None if problem.free is None else functools.partial(self._free, problem.free),
            )
        )

    def ask(self, count: int) -> Rows:
        """The rows that the wrapped strategy proposes."""
        return self._inner.ask(count)

    def tell(self, rows: Rows, objectives: ArrayLike | None, violations: ArrayLike | None = None) -> None:
        """Passes results to the wrapped strategy, with penalised objectives.

        Raises:
            InputError: Violations that no cost model computes are missing.
        """
        if objectives is None:
            self._inner.tell(rows, None)
            return
        values = np.array(np.reshape(np.asarray(objectives, float), (-1, len(self.problem.goals))))
        if violations is None:
            if self.problem.expensive_limits:
                names = ", ".join(self.problem.limits[i].name for i in self.problem.expensive_limits)
                raise InputError(f"pass the violations of {names}, because no cost model computes them")
            excess = self.problem.price(self.problem.canonicalise(rows))[1]
        else:
            excess = np.reshape(np.asarray(violations, float), (-1, len(self.problem.limits)))
        values[:, 0] = self._penalised(values[:, 0], excess[:, self._soft])
        self._inner.tell(rows, values, excess[:, self._hard])

    def _penalised(self, values: Float64Array, excess: Float64Array) -> Float64Array:
        worse = 1.0 if self.problem.goals[0].direction == "minimize" else -1.0
        return np.asarray(values + worse * np.abs(values) * (np.maximum(excess, 0) @ self._price))

    def _free(self, priced: FreeCosts, rows: Rows) -> tuple[Float64Array, Float64Array]:
        costs, violations = priced(rows)
        costs = np.array(np.reshape(np.asarray(costs, float), (len(rows), -1)))
        violations = np.reshape(np.asarray(violations, float), (len(rows), -1))
        free = self.problem.free_limits
        if self.problem.goals[0].free:
            costs[:, 0] = self._penalised(costs[:, 0], violations[:, [free.index(i) for i in self._soft]])
        return costs, violations[:, [free.index(i) for i in self._hard if i in free]]


class FullTrials:
    """Wrapper that evaluates every design in full; the wrapped strategy does not get results of shorter trials."""

    def __init__(self, problem: Problem, make: Make) -> None:
        self.problem = problem
        self._full = len(problem.fidelities) - 1
        self._inner = make(designs(problem, self._full))

    def ask(self, count: int) -> Rows:
        """The designs that the wrapped strategy proposes, as rows of full trials."""
        return at_share(self._inner.ask(count), self._full)

    def tell(self, rows: Rows, objectives: ArrayLike | None, violations: ArrayLike | None = None) -> None:
        """Passes the results of full trials to the wrapped strategy."""
        found = np.atleast_2d(np.asarray(rows, np.int64))
        full = found[:, -1] == self._full
        if not full.any():
            return
        values = None if objectives is None else np.asarray(objectives, float).reshape(len(found), -1)[full]
        excess = None if violations is None else np.asarray(violations, float).reshape(len(found), -1)[full]
        self._inner.tell(found[full, :-1], values, excess)


def designs(problem: Problem, share: int) -> Problem:
    """The problem without its last variable, the fidelity, which is fixed at index ``share``."""

    def rows(function: Callable[[Rows], Float64Array]) -> Callable[[Rows], Float64Array]:
        return lambda found: function(at_share(found, share))

    sample, neighbours, free, active = problem.sample, problem.neighbours, problem.free, problem.active
    return Problem(
        cardinalities=problem.cardinalities[:-1],
        goals=tuple(Goal(name=g.name, direction=g.direction, free=g.free) for g in problem.goals),
        limits=problem.limits,
        free=None if free is None else lambda found: free(at_share(found, share)),
        prior=None if problem.prior is None else rows(problem.prior),
        active=None if active is None else lambda found: active(at_share(found, share))[:, :-1],
        canonical=lambda found: problem.canonicalise(at_share(found, share))[:, :-1],
        kinds=None if problem.kinds is None else problem.kinds[:-1],
        neighbours=None if neighbours is None else lambda found, rng: neighbours(at_share(found, share), rng)[:, :-1],
        sample=None if sample is None else lambda count, rng: sample(count, rng)[:, :-1],
    )


def at_share(rows: Rows, share: int) -> Rows:
    """Designs (n, d) as rows (n, d + 1), all with the fidelity of index ``share``."""
    return np.hstack([rows, np.full((len(rows), 1), share, np.int64)])
