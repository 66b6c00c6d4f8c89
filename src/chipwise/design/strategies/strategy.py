"""The interface between a search problem and the algorithms that search it.

A candidate is a row of integers. Some objectives and constraints are *free*: a cost model computes them without a
trial. The others are *expensive*: only a trial reveals them. A strategy computes the free values as often as it needs,
and spends trials on the expensive ones; it does not know what the rows mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from chipwise.core.arrays import Float64Array
from chipwise.core.fields import check_fields, describe
from chipwise.errors import InputError, short

Rows = NDArray[np.int64]
FreeCosts = Callable[[Rows], tuple[Float64Array, Float64Array]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One objective: its name, direction, and whether a cost model computes it."""

    name: str
    direction: Literal["minimize", "maximize"] = "minimize"
    free: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One constraint. Its violation is at most 0 if the limit is met, and otherwise the excess as a share of the limit.

    Args:
        name: Name of the limited quantity.
        free: Whether a cost model computes it.
        penalty: None for a hard limit. A soft limit may be exceeded: for each 100 % of excess, the first objective is
            made worse by this share of its own value.
    """

    name: str
    free: bool = False
    penalty: float | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.penalty is not None and self.penalty <= 0:
            raise InputError(f"{self.name}: a penalty must be above 0, not {self.penalty:g}; None makes a limit hard")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A search problem: everything that is known before the first trial.

    Args:
        cardinalities: Number of values of each of the d integer variables, (d,).
        goals: The objectives, in the order of the columns that ``tell`` receives.
        limits: The constraints, in the order of the columns of violations that ``tell`` receives.
        free: Computes, for rows (n, d), the free goals' values (n, m_free) in the goals' directions, and the free
            limits' violations (n, k_free). Called with thousands of rows at a time.
        prior: Computes a rough guess of the first expensive goal for each row, (n,), up to a monotone transform: a
            higher guess means a higher value of that goal. The guess may be wrong.
        active: Computes which variables are active in each row, (n, d) booleans. Variables of layers beyond the depth
            are inactive.
        canonical: Maps each row to the one row that represents its design. Default: sets inactive variables to 0.
        kinds: Kind of each variable, (d,) names. Variables of one kind (such as the FFN widths of all layers) are
            expected to have similar effects. Default: inferred from the free costs.
        neighbours: Mutates each row; needed if changing a single variable could leave the space.
        sample: Samples rows. Default: every variable is uniform.
        fidelities: Shares of a full trial that a trial may have, rising to 1. If they are given, the last variable is
            the index of the share, so one design at two shares is two rows.
    """

    cardinalities: Rows
    goals: tuple[Goal, ...]
    limits: tuple[Limit, ...] = ()
    free: FreeCosts | None = None
    prior: Callable[[Rows], Float64Array] | None = None
    active: Callable[[Rows], NDArray[np.bool_]] | None = None
    canonical: Callable[[Rows], Rows] | None = None
    kinds: tuple[str, ...] | None = None
    neighbours: Callable[[Rows, np.random.Generator], Rows] | None = None
    sample: Callable[[int, np.random.Generator], Rows] | None = None
    fidelities: tuple[float, ...] = ()
    _sign: Float64Array = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        cardinalities = _whole_numbers(self.cardinalities)
        for name, kind in (("goals", Goal), ("limits", Limit)):
            given = getattr(self, name)
            if not isinstance(given, list | tuple) or not all(isinstance(item, kind) for item in given):
                raise InputError(f"{name} must be a tuple of {kind.__name__} objects, not {describe(given)}")
            object.__setattr__(self, name, tuple(given))
        for name in ("free", "prior", "active", "canonical", "neighbours", "sample"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise InputError(f"{name} must be a function of rows, not {describe(getattr(self, name))}")
        if not self.goals:
            raise InputError("a search needs at least one objective")
        if self.free is None and (self.free_goals or self.free_limits):
            raise InputError("an objective or constraint is free, but the problem has no function `free` to compute it")
        if self.kinds is not None and len(self.kinds) != len(cardinalities):
            raise InputError(
                f"kinds must name one kind for each of {len(cardinalities)} variables, not {len(self.kinds)}"
            )
        shares = self.fidelities
        if shares and (list(shares) != sorted(set(shares)) or shares[0] <= 0 or shares[-1] != 1):
            raise InputError(f"fidelities must be shares of a full trial that rise to 1, not {list(shares)}")
        if shares and len(shares) != cardinalities[-1]:
            raise InputError(
                f"the last variable must have {len(shares)} values, one per fidelity, not {cardinalities[-1]}"
            )
        object.__setattr__(self, "cardinalities", cardinalities)
        signs = [1.0 if goal.direction == "minimize" else -1.0 for goal in self.goals]
        object.__setattr__(self, "_sign", np.array(signs))

    @property
    def expensive_goals(self) -> list[int]:
        """Indices of the objectives that only a trial reveals."""
        return [i for i, goal in enumerate(self.goals) if not goal.free]

    @property
    def free_goals(self) -> list[int]:
        """Indices of the objectives that the cost model computes."""
        return [i for i, goal in enumerate(self.goals) if goal.free]

    @property
    def expensive_limits(self) -> list[int]:
        """Indices of the constraints that only a trial reveals."""
        return [i for i, limit in enumerate(self.limits) if not limit.free]

    @property
    def free_limits(self) -> list[int]:
        """Indices of the constraints that the cost model computes."""
        return [i for i, limit in enumerate(self.limits) if limit.free]

    def size(self) -> float:
        """Number of rows; different rows may represent the same design."""
        with np.errstate(over="ignore"):
            return float(np.prod(self.cardinalities.astype(float)))

    def canonicalise(self, rows: ArrayLike) -> Rows:
        """Maps each of ``rows`` to the one row that represents its design."""
        found = np.array(np.atleast_2d(np.asarray(rows, dtype=np.int64)))
        if self.canonical is not None:
            return np.asarray(self.canonical(found), dtype=np.int64)
        return np.where(self.active(found), found, 0) if self.active is not None else found

    def draw(self, count: int, rng: np.random.Generator) -> Rows:
        """Samples ``count`` canonical rows from the whole space; rows may repeat."""
        if self.sample is not None:
            return self.canonicalise(self.sample(count, rng))
        return self.canonicalise((rng.random((count, len(self.cardinalities))) * self.cardinalities).astype(np.int64))

    def price(self, rows: Rows) -> tuple[Float64Array, Float64Array]:
        """Computes the free goals, to be minimised, (n, m_free), and the violations of the free limits, (n, k_free)."""
        if self.free is None or not len(rows):
            return np.zeros((len(rows), len(self.free_goals))), np.zeros((len(rows), len(self.free_limits)))
        costs, violations = self.free(rows)
        shape = (len(rows), -1)
        signed = np.asarray(costs, float).reshape(shape) * self._sign[self.free_goals]
        return signed, np.asarray(violations, float).reshape(shape)

    def feasible(self, violations: Float64Array) -> NDArray[np.bool_]:
        """Mask of the rows that meet every hard limit, (n,), given their violations (n, k)."""
        hard = [i for i, limit in enumerate(self.limits) if limit.penalty is None]
        return np.asarray((violations[:, hard] <= 0).all(axis=1))

    def penalty(self, violations: Float64Array) -> Float64Array:
        """Penalty of the soft limits as a share of the first objective, (n,), given the violations (n, k)."""
        penalties = np.array([limit.penalty or 0.0 for limit in self.limits])
        return np.asarray(np.maximum(violations, 0) @ penalties)

    def prior_values(self, rows: Rows) -> Float64Array:
        """Prior of the first expensive goal (or of the first goal if all are free), to be minimised, (n,).

        Raises:
            InputError: There is no prior.
        """
        if self.prior is None:
            raise InputError("this problem has no prior")
        column = (self.expensive_goals or [0])[0]
        return np.asarray(self.prior(rows), float) * float(self._sign[column])

    def to_minimise(self, objectives: ArrayLike) -> Float64Array:
        """Converts objectives (n, m) in the goals' directions to values to be minimised."""
        return np.atleast_2d(np.asarray(objectives, float)) * self._sign


def _whole_numbers(cardinalities: object) -> Rows:
    """The number of values of each variable, (d,).

    Raises:
        InputError: The numbers are not integers of at least 1.
    """
    found = np.asarray(cardinalities)
    whole = found.dtype.kind in "iu" or (found.dtype.kind == "f" and bool((found == np.rint(found)).all()))
    if found.ndim != 1 or not len(found) or not whole or (found < 1).any():
        raise InputError(
            "cardinalities: a search needs at least one variable, each with at least one value, "
            f"not {short(cardinalities)}"
        )
    return found.astype(np.int64)


class Strategy(Protocol):
    """A search algorithm, created as ``Strategy(problem, seed=…)``.

    A strategy is deterministic for a given seed and order of calls. ``ask`` returns only new rows: rows that it has not
    returned before and that ``tell`` has not received. If too few new rows are left, it returns fewer rows than
    requested, and finally none. ``tell`` may receive rows that ``ask`` never returned (after a restart, or from another
    search). The two methods are never called at the same time.

    A strategy gets only hard limits: :func:`chipwise.design.strategies.algorithms.make_strategy` converts soft limits
    to penalties on the first objective. Unless its class has ``fidelity_aware = True``, a strategy gets rows without a
    fidelity, and results of full trials only.
    """

    def __init__(self, problem: Problem, *, seed: int, **options: object) -> None: ...

    def ask(self, count: int) -> Rows:
        """Proposes up to ``count`` rows (n, d) for trials, canonical and distinct, the most promising first."""
        ...

    def tell(self, rows: Rows, objectives: ArrayLike | None, violations: ArrayLike | None = None) -> None:
        """Receives the results of trials.

        Args:
            rows: Evaluated rows, (n, d).
            objectives: Objectives (n, m) in the goals' order and directions; None if all trials failed, NaN in the rows
                of failed trials.
            violations: Violations (n, k) in the limits' order, at most 0 if a limit is met. May be None if the cost
                model computes every limit.
        """
        ...
