"""The contract between a search problem and the algorithms that search it.

A candidate is a row of integers. Some objectives and constraints are *free*: a cost model computes them without a
trial. The others are *expensive*: only a trial reveals them. A strategy sees both and spends trials on the expensive
ones; it does not know what the rows stand for.
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
    """One constraint: its violation is at most 0 if it holds, a share of the limit where it does not.

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
        cardinalities: How many values each of the d integer variables has, (d,).
        goals: The objectives, in the order of the columns that ``tell`` receives.
        limits: The constraints, in the order of the columns of violations that ``tell`` receives.
        free: Rows (n, d) to the free goals' values (n, m_free), in the goals' directions, and the free limits'
            violations (n, k_free). Called with thousands of rows at a time.
        prior: A rough guess of the first expensive goal for each row, (n,), up to a monotone transform: a higher guess
            means a higher value of that goal. It may be wrong.
        active: Which variables count in each row, (n, d) booleans. Variables of layers past the depth do not.
        canonical: The row that stands for all rows of the same design; by default, inactive variables at 0.
        kinds: What each variable is, (d,) names. Variables of one kind (the FFN width of every layer) are expected to
            act alike; where this is not given it is guessed from the free costs.
        neighbours: Rows to one mutated row each, where changing single variables would leave the space.
        sample: Draws rows; by default every variable is uniform.
        fidelities: Shares of a full trial at which a row may be tried, rising to 1. Where given, the last variable is
            the number of the share: the same design at another share is another row.
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
        """Columns of the objectives that only a trial reveals."""
        return [i for i, goal in enumerate(self.goals) if not goal.free]

    @property
    def free_goals(self) -> list[int]:
        """Columns of the objectives that the cost model knows."""
        return [i for i, goal in enumerate(self.goals) if goal.free]

    @property
    def expensive_limits(self) -> list[int]:
        """Columns of the constraints that only a trial reveals."""
        return [i for i, limit in enumerate(self.limits) if not limit.free]

    @property
    def free_limits(self) -> list[int]:
        """Columns of the constraints that the cost model knows."""
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
        """``count`` canonical rows from the whole space; repeats may occur."""
        if self.sample is not None:
            return self.canonicalise(self.sample(count, rng))
        return self.canonicalise((rng.random((count, len(self.cardinalities))) * self.cardinalities).astype(np.int64))

    def price(self, rows: Rows) -> tuple[Float64Array, Float64Array]:
        """The free goals to minimise, (n, m_free), and the free violations, (n, k_free)."""
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
        """The prior of the first expensive goal (of the first goal, where none is expensive), to be minimised, (n,).

        Raises:
            InputError: There is no prior.
        """
        if self.prior is None:
            raise InputError("this problem states no prior")
        column = (self.expensive_goals or [0])[0]
        return np.asarray(self.prior(rows), float) * float(self._sign[column])

    def to_minimise(self, objectives: ArrayLike) -> Float64Array:
        """Objectives (n, m) in the goals' directions as values to minimise."""
        return np.atleast_2d(np.asarray(objectives, float)) * self._sign


def _whole_numbers(cardinalities: object) -> Rows:
    """The number of values of each variable, (d,).

    Raises:
        InputError: They are not whole numbers of at least 1.
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
    """A search algorithm, made as ``Strategy(problem, seed=…)``.

    Deterministic given its seed and the order of its calls. ``ask`` returns only new rows: none that it returned
    before or that ``tell`` received. When there are not enough it returns fewer, in the end none. ``tell`` may receive
    rows that ``ask`` never returned (after a restart, or from another search). The two are never called at the same
    time.

    A strategy sees hard limits only: :func:`chipwise.design.strategies.algorithms.make_strategy` turns soft ones into
    penalties on the first
    objective. Unless its class has ``fidelity_aware = True`` it sees designs and full trials only.
    """

    def __init__(self, problem: Problem, *, seed: int, **options: object) -> None: ...

    def ask(self, count: int) -> Rows:
        """Proposes up to ``count`` rows (n, d) for trials, canonical and distinct, the most promising first."""
        ...

    def tell(self, rows: Rows, objectives: ArrayLike | None, violations: ArrayLike | None = None) -> None:
        """Receives the results of trials.

        Args:
            rows: (n, d).
            objectives: (n, m) in the goals' order and directions; None if the trials failed, or NaN in single rows.
            violations: (n, k) in the limits' order, at most 0 if a limit holds; None if all limits are free.
        """
        ...
