"""Screening: predicts the costs of many candidates and keeps those within the limits, or explains why none is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.rows import distinct_rows, new_rows
from chipwise.design.limits import Constraint, relative_excess
from chipwise.errors import OutOfReach
from chipwise.model.space.designs import summary
from chipwise.model.space.search_space import Rows, SearchSpace

DRAWS = 200_000  # random candidates whose costs are predicted
STALE_ROUNDS = 8  # rounds without progress after which evolution towards the limits stops
Metrics = Callable[[Rows], Mapping[str, Float64Array]]  # metrics of candidates that need no training, by name


@dataclass(frozen=True)
class Screened:
    """Candidates that the cost model predicts within the limits, and statistics of the screening."""

    rows: Rows
    metrics: Mapping[str, Float64Array]
    priced: int
    priced_per_s: float  # distinct candidates evaluated per second
    feasible_share: float  # share of the first random candidates within the limits


def excess(constraints: tuple[Constraint, ...], metrics: Mapping[str, Float64Array]) -> Float64Array:
    """Largest relative excess of each candidate over any hard limit, (n,); at most 0 if all limits are met."""
    count = len(next(iter(metrics.values())))
    worst = np.full(count, -1.0)
    for item in constraints:
        if item.hard and item.metric in metrics:
            worst = np.maximum(worst, relative_excess(item, metrics[item.metric]))
    return worst


def screen(
    space: SearchSpace,
    metrics: Metrics,
    constraints: tuple[Constraint, ...],
    *,
    seed: int,
    draws: int = DRAWS,
    wanted: int = 2_000,
) -> Screened:
    """Samples candidates and predicts their costs; mutates the closest ones while too few are within the limits.

    Raises:
        OutOfReach: No candidate was found; the message says which limit is out of reach and the closest value.
    """
    rng = np.random.default_rng(seed)
    draws = int(min(draws, 4 * space.size() + 64))
    rows, _ = distinct_rows(space.sample(draws, rng))
    begun = time.perf_counter()
    known = {name: np.asarray(values) for name, values in metrics(rows).items()}
    elapsed = time.perf_counter() - begun
    worst = excess(constraints, known)
    share = float((worst <= 0).mean())
    priced = drawn = len(rows)
    nearest, stale = worst.min(), 0
    for _ in range(30):
        if (worst <= 0).sum() >= min(wanted, len(rows)) or stale >= STALE_ROUNDS:
            break
        parents = rows[np.argsort(worst, kind="stable")[:500]]
        children = mutate(space, np.repeat(parents, 8, axis=0), rng)
        fresh = new_rows(children, rows)
        if not len(fresh):
            break
        more = metrics(fresh)
        priced += len(fresh)
        rows = np.vstack([rows, fresh])
        known = {name: np.concatenate([values, more[name]]) for name, values in known.items()}
        worst = excess(constraints, known)
        stale = stale + 1 if 0 < worst.min() >= nearest else 0
        nearest = worst.min()
    keep = worst <= 0
    if not keep.any():
        raise OutOfReach(_why(space, rows, known, constraints, worst), beyond=float(nearest))
    return Screened(
        rows=rows[keep],
        metrics={name: values[keep] for name, values in known.items()},
        priced=priced,
        priced_per_s=drawn / elapsed if elapsed > 0 else float(drawn),
        feasible_share=share,
    )


def loosened(constraints: Iterable[Constraint], beyond: float) -> tuple[Constraint, ...]:
    """The hard limits, each loosened by the relative amount ``beyond``."""
    return tuple(
        replace(item, limit=item.limit * (1 + beyond * (1.001 if item.op == "<=" else -1.001))) if item.hard else item
        for item in constraints
    )


def mutate(space: SearchSpace, rows: Rows, rng: np.random.Generator, *, genes: float = 1.5) -> Rows:
    """Returns a copy of each row with about ``genes`` genes changed at random."""
    change = rng.random(rows.shape) < genes / rows.shape[1]
    drawn = (rng.random(rows.shape) * space.cardinalities).astype(np.int64)
    return space.canonical(np.where(change, drawn, rows))


def _why(
    space: SearchSpace,
    rows: Rows,
    known: Mapping[str, Float64Array],
    constraints: tuple[Constraint, ...],
    worst: Float64Array,
) -> str:
    """Says which limits are out of reach, each alone or all together, and how close the closest candidate comes."""
    alone = []
    judged = [item for item in constraints if item.hard and item.metric in known]
    for item in judged:
        values = known[item.metric]
        best = int(np.argmin(values) if item.op == "<=" else np.argmax(values))
        if not item.holds(float(values[best])):
            least = float(values[best])
            times = least / item.limit if item.op == "<=" else item.limit / least if least > 0 else math.inf
            alone.append(
                f"{item.metric} {item.text}: the closest candidate is predicted to have "
                f"{item.show(least)} ({summary(space.design(rows[best]))}), off by a factor of {times:.3g}; "
                f"the nearest limit that it meets: {item.nearest(least)}"
            )
    if alone:
        return "constraints that no candidate of the space can meet: " + "; ".join(alone)
    nearest = int(np.argmin(worst))
    values_there = ", ".join(
        f"{item.metric} {item.show(float(known[item.metric][nearest]))} (limit {item.text})" for item in judged
    )
    return (
        "each constraint can be met alone, but no candidate meets all of them together; the closest has "
        f"{values_there}: {summary(space.design(rows[nearest]))}"
    )
