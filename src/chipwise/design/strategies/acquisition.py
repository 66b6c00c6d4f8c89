"""Acquisition functions: expected hypervolume improvement and, for a single objective, expected improvement.

References:
    Emmerich, Deutz and Klinkenberg, Hypervolume-Based Expected Improvement, 2011. If one of two objectives is free
    (known without a trial), the expectation is a sum of one-dimensional expected improvements over the steps of the
    front. Otherwise it is the probability that the candidate dominates a point, integrated over the region that the
    front does not dominate.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import Float64Array
from chipwise.core.statistics import normal_cdf, normal_density
from chipwise.design.strategies.pareto import covered, non_dominated

_ROUND, _DRAWS = 8_192, 65_536  # points sampled per round, and at most; used if the sum over steps does not apply
_PLACES = 1_500  # enough points in the region that the front does not dominate
_CELLS = 2_000_000  # most pairs of candidate and point per batch
_CORNER = 1.1  # distance of the reference point from the front's ideal point, in spans of the front
_SHORTLIST = 300  # candidates for which covariances are computed


def expected_improvement(mean: Float64Array, std: Float64Array, best: Float64Array) -> Float64Array:
    """Expected value of max(0, best - value) if values are normally distributed; arrays broadcast."""
    s = np.maximum(std, 1e-12)
    z = (best - mean) / s
    return np.asarray(s * np.maximum(z * normal_cdf(z) + normal_density(z), 0))


def expected_gain(mean: Float64Array, std: Float64Array, front: Float64Array, corner: Float64Array) -> Float64Array:
    """Expected hypervolume that each candidate adds to ``front`` (k, m); ``corner`` (m,) is the reference point."""
    m = mean.shape[1]
    if m == 1:
        best = np.minimum(front.min(initial=np.inf), corner[0])
        return expected_improvement(mean[:, 0], std[:, 0], np.asarray(best))
    expensive = np.flatnonzero((std > 0).any(axis=0))
    if m == 2 and len(expensive) == 1:
        return _gain_one_expensive(mean, std[:, expensive[0]], front, corner, int(expensive[0]))
    return _gain_sampled(mean, std, front, corner, expensive)


def _gain_one_expensive(
    mean: Float64Array, std: Float64Array, front: Float64Array, corner: Float64Array, expensive: int
) -> Float64Array:
    free = 1 - expensive
    below = front[(front < corner).all(axis=1)] if len(front) else np.zeros((0, 2))
    below = below[non_dominated(below)]
    below = below[np.argsort(below[:, free], kind="stable")]
    edges = np.r_[-np.inf, below[:, free], corner[free]]
    heights = np.r_[corner[expensive], below[:, expensive]]
    cost = mean[:, free : free + 1]
    widths = np.maximum(edges[1:] - np.maximum(edges[:-1], cost), 0.0)
    widths[cost[:, 0] >= corner[free]] = 0.0
    return np.asarray(
        (widths * expected_improvement(mean[:, expensive, None], std[:, None], heights[None])).sum(axis=1)
    )


def _gain_sampled(
    mean: Float64Array, std: Float64Array, front: Float64Array, corner: Float64Array, expensive: NDArray[np.int64]
) -> Float64Array:
    """Expected gain of each candidate, a sum over sampled points that the front does not dominate.

    The term of a point is the probability that the candidate dominates it, times the volume that it represents.
    """
    optimistic = mean - 2 * std
    hopeful = np.flatnonzero((optimistic < corner).all(axis=1))
    result = np.zeros(len(mean))
    if not len(hopeful):
        return result
    reach = optimistic[hopeful]
    places, volume = _undominated(front, reach[non_dominated(reach)], corner)
    free = np.setdiff1d(np.arange(len(corner)), expensive)
    for part in np.array_split(hopeful, max(1, len(hopeful) * len(places) // _CELLS)):
        chance = np.ones((len(part), len(places)))
        for j in free:
            chance *= mean[part, j, None] <= places[:, j]
        for j in expensive:
            z = (places[:, j] - mean[part, j, None]) / np.maximum(std[part, j, None], 1e-12)
            chance *= normal_cdf(z)
        result[part] = chance.sum(axis=1) * volume
    return result


def _undominated(front: Float64Array, reach: Float64Array, corner: Float64Array) -> tuple[Float64Array, float]:
    """Evenly spread points that ``reach`` dominates and ``front`` does not, and the volume that each represents."""
    low = reach.min(axis=0)
    kept: list[Float64Array] = []
    drawn = 0
    while drawn < _DRAWS and sum(len(part) for part in kept) < _PLACES:
        places = low + (corner - low) * lattice(_ROUND, len(corner), start=drawn)
        drawn += _ROUND
        places = places[~covered(places, front)]
        kept.append(places[covered(places, reach)])
    found = np.vstack(kept)
    return found, float(np.prod(corner - low)) / drawn


def lattice(count: int, dimensions: int, *, start: int = 0) -> Float64Array:
    """``count`` points from index ``start`` of a low-discrepancy sequence in the unit cube, (count, dimensions).

    References:
        Additive recurrence with inverse powers of the root of x^(d+1) = x + 1, a generalised golden ratio (Roberts
        2018).
    """
    root = 1.5
    for _ in range(60):
        root = (1 + root) ** (1 / (dimensions + 1))
    steps = root ** -np.arange(1.0, dimensions + 1)
    return np.asarray((0.5 + np.arange(start + 1, start + count + 1)[:, None] * steps) % 1.0)


def frame(points: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Best value and span of each objective over the front of ``points`` (n, m); used to scale objectives."""
    front = points[non_dominated(points)]
    low, high = front.min(axis=0), front.max(axis=0)
    span = np.where(high > low, high - low, np.where(points.max(axis=0) > low, points.max(axis=0) - low, 1.0))
    return low, span


def adding_most(
    points: Float64Array, front: Float64Array, *, expensive: list[int], doubt: float, count: int
) -> list[int]:
    """Greedily chooses ``count`` of ``points`` (n, m), each adding most to ``front`` (k, m); returns their indices.

    Objectives must be scaled by :func:`frame`. Values in the columns ``expensive`` have the standard deviation
    ``doubt``; all other values are exact.
    """
    deviation = np.zeros_like(points)
    deviation[:, expensive] = doubt
    chosen: list[int] = []
    while len(chosen) < min(count, len(points)):
        worth = expected_gain(points, deviation, front, np.full(points.shape[1], _CORNER))
        worth[chosen] = -1.0
        chosen.append(int(np.argmax(worth)))
        front = np.vstack([front, points[chosen[-1]]])
    return chosen


def most_informative(
    mean: Float64Array,
    std: Float64Array,
    covariance: Callable[[NDArray[np.int64], int], Float64Array],
    observed: Float64Array,
    count: int,
    *,
    chance: Float64Array | None = None,
    noise: Float64Array | None = None,
) -> NDArray[np.int64]:
    """The ``count`` candidates that together are expected to improve the front most, best first.

    After each choice, the candidate's predicted values join the front and the posterior is conditioned on them, so a
    batch contains no redundant candidates.

    Args:
        mean: Predicted objectives of n candidates, to be minimised, (n, m); exact for free objectives (those that need
            no trial).
        std: Standard deviations of ``mean``, 0 for free objectives, (n, m).
        covariance: ``(index (c,), objective) -> (c, c)``, the posterior covariance of candidates in an expensive
            objective.
        observed: Objectives of the feasible trials, and predicted objectives of running trials, (k, m).
        count: Number of candidates to choose.
        chance: Probability that a candidate meets all expensive limits, (n,).
        noise: Variance of the observation noise of each objective, (m,).
    """
    n, m = mean.shape
    likely = np.ones(n) if chance is None else chance
    low, span = frame(np.vstack([observed, mean[likely > 0.5] if (likely > 0.5).any() else mean]))
    corner = np.full(m, _CORNER)
    centre, spread = (mean - low) / span, std / span
    front = (observed - low) / span
    front = front[non_dominated(front)]
    worth = expected_gain(centre, spread, front, corner) * likely
    fallback = -centre.sum(axis=1) + spread.sum(axis=1)
    short = np.lexsort((-fallback, -worth))[: max(_SHORTLIST, 2 * count)]
    centre, spread, likely = centre[short], spread[short].copy(), likely[short]
    expensive = np.flatnonzero((std > 0).any(axis=0))
    shared = {int(j): covariance(short, int(j)) / span[j] ** 2 for j in expensive}
    left = np.ones(len(short), bool)
    chosen: list[int] = []
    worth = worth[short]
    while len(chosen) < min(count, n):
        best = int(np.argmax(np.where(left, worth, -np.inf)))
        if worth[best] <= 0:
            best = int(np.flatnonzero(left)[0])
        chosen.append(best)
        left[best] = False
        front = np.vstack([front, centre[best]])
        front = front[non_dominated(front)]
        for j, cov in shared.items():
            jitter = 1e-12 if noise is None else noise[j] / span[j] ** 2
            cov -= np.outer(cov[:, best], cov[best]) / (cov[best, best] + jitter + 1e-15)
            spread[:, j] = np.sqrt(np.maximum(np.diag(cov), 0))
        worth = expected_gain(centre, spread, front, corner) * likely
    return short[chosen]
