"""Pareto fronts of objectives to be minimised: domination, hypervolume, and the knee.

References:
    Deb et al., NSGA-II, 2002 (ranks, crowding, constrained domination); While, Bradstreet and Barone, A Fast Way of
    Calculating Exact Hypervolumes, 2012 (the recursion for three and more objectives).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from chipwise.core.arrays import Float64Array

_BLOCK = 128  # points compared at a time


def non_dominated(points: ArrayLike) -> NDArray[np.bool_]:
    """Mask of the points (n, m) that no other point dominates; equal points are all kept.

    >>> non_dominated([[1, 3], [2, 2], [2, 3]]).tolist()
    [True, True, False]
    """
    F = np.asarray(points, float)
    n, m = F.shape
    if n == 0:
        return np.zeros(0, bool)
    if m == 1:
        return np.asarray(F[:, 0] == F[:, 0].min())
    if m == 2:
        return _non_dominated_2d(F)
    distinct, where = np.unique(F, axis=0, return_inverse=True)  # sorted so that no point dominates an earlier one
    keep = np.zeros(len(distinct), bool)
    for start in range(0, len(distinct), _BLOCK):
        block = distinct[start : start + _BLOCK]
        among = np.ones((len(block), len(block)), bool)
        for column in block.T:
            among &= column <= column[:, None]
        np.fill_diagonal(among, False)
        keep[start : start + _BLOCK] = ~among.any(axis=1) & ~covered(block, distinct[:start][keep[:start]])
    return np.asarray(keep[where.reshape(-1)])


def covered(places: ArrayLike, points: ArrayLike) -> NDArray[np.bool_]:
    """Mask of ``places`` (n, m) that one of ``points`` (k, m) dominates or equals.

    >>> covered([[1, 1], [0, 2]], [[1, 0]]).tolist()
    [True, False]
    """
    at, by = np.asarray(places, float), np.asarray(points, float)
    found = np.zeros(len(at), bool)
    for start in range(0, len(by), _BLOCK):
        left = np.flatnonzero(~found)
        below = np.ones((len(left), len(by[start : start + _BLOCK])), bool)
        for j in range(at.shape[1]):
            below &= by[start : start + _BLOCK, j] <= at[left, j, None]
        found[left] = below.any(axis=1)
    return found


def _non_dominated_2d(F: Float64Array) -> NDArray[np.bool_]:
    order = np.lexsort((F[:, 1], F[:, 0]))
    x, y = F[order, 0], F[order, 1]
    first = np.r_[True, x[1:] > x[:-1]]  # among points with equal x, the least y comes first
    group = np.cumsum(first) - 1
    least = y[first]
    before = np.r_[np.inf, np.minimum.accumulate(least)[:-1]]
    keep = np.zeros(len(F), bool)
    keep[order] = (y == least[group]) & (y < before[group])
    return keep


def ranks(points: ArrayLike, violations: ArrayLike | None = None, *, most: int | None = None) -> NDArray[np.int64]:
    """Non-domination layer of each point, 0 for the front.

    Args:
        points: Points (n, m), to be minimised.
        violations: Total violation of each point, (n,), at most 0 for feasible points. Infeasible points rank behind
            all feasible points, in order of their violation.
        most: Number of layers to distinguish; all later layers are merged into one.
    """
    F = np.asarray(points, float)
    rank = np.full(len(F), -1, np.int64)
    total = np.zeros(len(F)) if violations is None else np.maximum(np.asarray(violations, float), 0)
    left = np.flatnonzero(total <= 0)
    layer = 0
    while len(left):
        front = non_dominated(F[left]) if most is None or layer < most else np.ones(len(left), bool)
        rank[left[front]] = layer
        left, layer = left[~front], layer + 1
    bad = np.flatnonzero(total > 0)
    if len(bad):
        rank[bad] = layer + np.unique(total[bad], return_inverse=True)[1].reshape(-1)
    return rank


def crowding(points: ArrayLike) -> Float64Array:
    """Crowding distance of each point in one layer; infinite at the extremes."""
    F = np.asarray(points, float)
    distance = np.zeros(len(F))
    for column in F.T:
        order = np.argsort(column, kind="stable")
        span = column[order[-1]] - column[order[0]] if len(F) else 0.0
        distance[order[[0, -1]]] = np.inf
        if span > 0 and len(F) > 2:
            distance[order[1:-1]] += (column[order[2:]] - column[order[:-2]]) / span
    return distance


def hypervolume(points: ArrayLike, reference: ArrayLike) -> float:
    """Hypervolume between the points (n, m) and ``reference``, exact for any number of objectives.

    >>> hypervolume([[0, 1], [1, 0]], [2, 2])
    3.0
    """
    F, corner = np.atleast_2d(np.asarray(points, float)), np.asarray(reference, float)
    if F.size == 0:
        return 0.0
    F = F[(corner > F).all(axis=1)]
    return _volume(np.unique(F[non_dominated(F)], axis=0), corner) if len(F) else 0.0


def _volume(F: Float64Array, corner: Float64Array) -> float:
    """Hypervolume of distinct points that do not dominate each other."""
    if not len(F):
        return 0.0
    if len(corner) == 1:
        return float(corner[0] - F[:, 0].min())
    if len(corner) == 2:
        order = np.argsort(F[:, 0], kind="stable")
        x, y = F[order, 0], F[order, 1]
        return float(((corner[0] - x) * (np.r_[corner[1], y[:-1]] - y)).sum())
    if len(F) == 1:
        return float(np.prod(corner - F[0]))
    F = F[
        np.argsort(-F[:, -1], kind="stable")
    ]  # worst in the last objective first, so that one dimension can be dropped
    return float(sum(_exclusive(F[i], F[i + 1 :], corner) for i in range(len(F))))


def _exclusive(point: Float64Array, others: Float64Array, corner: Float64Array) -> float:
    box = float(np.prod(corner - point))
    if not len(others):
        return box
    limited = np.maximum(others, point)
    limited = limited[(limited < corner).all(axis=1)]
    if not len(limited):
        return box
    if (limited[:, -1] == point[-1]).all():  # all are equal in the last objective: drop it
        flat = limited[:, :-1]
        area = _volume(np.unique(flat[non_dominated(flat)], axis=0), corner[:-1])
        return box - area * float(corner[-1] - point[-1])
    return box - _volume(np.unique(limited[non_dominated(limited)], axis=0), corner)


def knee(points: ArrayLike) -> int | None:
    """The knee of a front: the point beyond which further gains in one objective cost much of another.

    Each objective is scaled to 0 … 1 over the front. The knee is the point farthest from the chord through the extremes
    (with three or more objectives, the plane), on the side of the ideal point. None if the front has no bend: it has
    fewer than three points, or all points are equal in an objective.
    """
    F = np.asarray(points, float)
    if len(F) < 3:
        return None
    low, high = F.min(axis=0), F.max(axis=0)
    if (high <= low).any():
        return None
    total = ((F - low) / (high - low)).sum(axis=1)  # constant on all planes parallel to the one through the extremes
    best = int(np.argmin(total))
    return best if total[best] < total[F.argmin(axis=0)].min() - 1e-12 else None
