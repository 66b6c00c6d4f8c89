"""The contract between a search problem and the algorithms that search it.

A candidate is a row of integers. Some objectives and constraints are *free*: a cost model computes them without a
trial. The others are *expensive*: they are known only after a trial. A strategy can compute the free ones and uses
trials for the expensive ones; it does not know the meaning of the rows.
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
    """One constraint. Its violation is at most 0 if it holds; otherwise it is the excess as a share of the limit.

    Args:
        name: Name of the limited quantity.
        free: Whether a cost model computes it.
        penalty: None for a hard limit. Otherwise the limit may be broken at a price: for each whole violation (100 %
            past the limit) the first objective counts as worse by this share of its own size.
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
    """The problem as known before the first trial.

    Args:
        cardinalities: Number of values of each of the d integer variables, (d,).
        goals: The objectives, in the order of the columns that ``tell`` receives.
        limits: The constraints, in the order of the columns of violations that ``tell`` receives.
        free: Computes, for rows (n, d), the free goals' values (n, m_free) in the goals' directions, and the free
            limits' violations (n, k_free). Called with thousands of rows at a time.
        prior: A rough guess of the first expensive goal for each row, (n,), up to a monotone transform: a higher guess
            means a higher value of that goal. It may be wrong.
        active: Computes which variables are active in each row, (n, d) booleans. Variables of layers beyond the depth
            are not.
        canonical: Computes the representative of all rows of the same design; by default it sets inactive variables to
            0.
        kinds: Kind of each variable, (d,) names. Variables of one kind (the FFN width of every layer) are expected to
            have similar effects. Default: inferred from the free costs.
        neighbours: Mutates each row, if changing single variables could leave the space.
        sample: Samples rows; by default every variable is uniform.
        fidelities: Shares of a full trial at which a row may be tried, rising to 1. If given, the last variable is the
            index of the share, so the same design at another share is another row.
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
                raise InputError(f"{name} must be a tuple of {kind.__name__}, not {describe(given)}")
            object.__setattr__(self, name, tuple(given))
        for name in ("free", "prior", "active", "canonical", "neighbours", "sample"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise InputError(f"{name} must be a function of rows, not {describe(getattr(self, name))}")
        if not self.goals:
            raise InputError("a search needs at least one objective")
        if self.free is None and (self.free_goals or self.free_limits):
            raise InputError("an objective or constraint is called free, but no function `free` computes it")
        if self.kinds is not None and len(self.kinds) != len(cardinalities):
            raise InputError(f"{len(self.kinds)} kinds were named for {len(cardinalities)} variables")
        shares = self.fidelities
        if shares and (list(shares) != sorted(set(shares)) or shares[0] <= 0 or shares[-1] != 1):
            raise InputError(f"fidelities are shares of a full trial that rise to 1, not {list(shares)}")
        if shares and len(shares) != cardinalities[-1]:
            raise InputError(
                f"{len(shares)} fidelities need a last variable of as many values, not {cardinalities[-1]}"
            )
        object.__setattr__(self, "cardinalities", cardinalities)
        signs = [1.0 if goal.direction == "minimize" else -1.0 for goal in self.goals]
        object.__setattr__(self, "_sign", np.array(signs))

    @property
    def expensive_goals(self) -> list[int]:
        """Columns of the objectives that are known only after a trial."""
        return [i for i, goal in enumerate(self.goals) if not goal.free]

    @property
    def free_goals(self) -> list[int]:
        """Columns of the objectives that the cost model computes."""
        return [i for i, goal in enumerate(self.goals) if goal.free]

    @property
    def expensive_limits(self) -> list[int]:
        """Columns of the constraints that are known only after a trial."""
        return [i for i, limit in enumerate(self.limits) if not limit.free]

    @property
    def free_limits(self) -> list[int]:
        """Columns of the constraints that the cost model computes."""
        return [i for i, limit in enumerate(self.limits) if limit.free]

    def size(self) -> float:
        """Number of rows, including several for the same design."""
        with np.errstate(over="ignore"):
            return float(np.prod(self.cardinalities.astype(float)))

    def canonicalise(self, rows: ArrayLike) -> Rows:
        """Rows that represent the designs of ``rows``."""
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
        """The free goals, minimised, (n, m_free), and the free violations, (n, k_free)."""
        if self.free is None or not len(rows):
            return np.zeros((len(rows), len(self.free_goals))), np.zeros((len(rows), len(self.free_limits)))
        costs, violations = self.free(rows)
        shape = (len(rows), -1)
        signed = np.asarray(costs, float).reshape(shape) * self._sign[self.free_goals]
        return signed, np.asarray(violations, float).reshape(shape)

    def feasible(self, violations: Float64Array) -> NDArray[np.bool_]:
        """Mask (n,) of the rows that meet every hard limit, from violations (n, k)."""
        hard = [i for i, limit in enumerate(self.limits) if limit.penalty is None]
        return np.asarray((violations[:, hard] <= 0).all(axis=1))

    def penalty(self, violations: Float64Array) -> Float64Array:
        """Penalty of the soft limits as a share of the first objective, from violations (n, k): (n,)."""
        penalties = np.array([limit.penalty or 0.0 for limit in self.limits])
        return np.asarray(np.maximum(violations, 0) @ penalties)

    def prior_values(self, rows: Rows) -> Float64Array:
        """Prior of the first expensive goal (of the first goal if none is expensive), minimised, (n,).

        Raises:
            InputError: There is no prior.
        """
        if self.prior is None:
            raise InputError("this problem has no prior")
        column = (self.expensive_goals or [0])[0]
        return np.asarray(self.prior(rows), float) * float(self._sign[column])

    def to_minimise(self, objectives: ArrayLike) -> Float64Array:
        """Objectives (n, m) in the goals' directions as values to minimise."""
        return np.atleast_2d(np.asarray(objectives, float)) * self._sign


def _whole_numbers(cardinalities: object) -> Rows:
    """The number of values of each variable, (d,).

    Raises:
        InputError: They are not integers of at least 1.
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

    Deterministic given its seed and the order of its calls. ``ask`` returns only new rows, which it has not returned
    before and ``tell`` has not received. If there are too few new rows it returns fewer, in the end none. ``tell`` may
    receive rows that ``ask`` never returned (after a restart, or from another search). The two are never called at the
    same time.

    A strategy gets only hard limits: :func:`chipwise.design.strategies.algorithms.make_strategy` converts soft ones to
    penalties on the first objective. Unless its class has ``fidelity_aware = True``, it gets only designs and full
    trials.
    """

    def __init__(self, problem: Problem, *, seed: int, **options: object) -> None: ...

    def ask(self, count: int) -> Rows:
        """Proposes up to ``count`` rows (n, d) for trials, canonical and distinct, the most promising first."""
        ...

    def tell(self, rows: Rows, objectives: ArrayLike | None, violations: ArrayLike | None = None) -> None:
        """Receives the results of trials.

        Args:
            rows: Evaluated rows, (n, d).
            objectives: Objectives (n, m) in the goals' order and directions; None if all trials failed, NaN in rows of
                failed ones.
            violations: Violations (n, k) in the limits' order, at most 0 if a limit holds; None if all limits are free.
        """
        ...
