"""Fitting rates: non-negative least squares in relative error."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from chipwise.core.arrays import Float64Array


def fit_relative(features: Any, seconds: Any, *, rounds: int = 6) -> Float64Array:
    """Rates ≥ 0 that make ``features @ rates`` agree with ``seconds`` in relative terms.

    Rows that stay far off (a disturbed measurement) are weighted down in further rounds.
    """
    features, seconds = np.asarray(features, np.float64), np.asarray(seconds, np.float64)
    scale = np.maximum(np.abs(features).max(axis=0), 1e-300)
    rows = features / scale / seconds[:, None]
    weights = np.ones(len(seconds))
    rates = np.zeros(features.shape[1])
    for _ in range(rounds):
        rates = nnls(rows * weights[:, None], weights)
        error = np.abs(rows @ rates - 1)
        typical = max(float(np.median(error)), 0.01)
        weights = np.sqrt(1 / np.maximum(1.0, error / (2 * typical)))
    return np.asarray(rates / scale)


def nnls(matrix: Float64Array, target: Float64Array) -> Float64Array:
    """The x ≥ 0 with the least ‖matrix @ x − target‖.

    References:
        Lawson and Hanson 1974, Solving Least Squares Problems, chapter 23 (the active-set method).
    """
    columns = matrix.shape[1]
    x = np.zeros(columns)
    free = np.zeros(columns, bool)
    tolerance = 1e-10 * max(1.0, float(np.abs(matrix.T @ target).max(initial=0.0)))
    for _ in range(10 * columns):
        gradient = matrix.T @ (target - matrix @ x)
        gradient[free] = -np.inf
        best = int(np.argmax(gradient)) if columns else 0
        if not columns or gradient[best] <= tolerance:
            break
        free[best] = True
        while True:
            trial = np.zeros(columns)
            trial[free] = np.linalg.lstsq(matrix[:, free], target, rcond=None)[0]
            if trial[free].min() > 0:
                x = trial
                break
            down = free & (trial <= 0)
            step = float(np.min(x[down] / np.maximum(x[down] - trial[down], 1e-300)))
            x = x + step * (trial - x)
            free &= x > 1e-14
            x[~free] = 0.0
            if not free.any():
                break
    return x


def rising(knots: Any, at: Any) -> Float64Array:
    """Basis of curves that never fall: a constant, then one ramp from each knot to the next, over the logarithm."""
    knots, at = np.log2(np.asarray(knots)), np.log2(np.maximum(np.asarray(at, np.float64), 1.0))
    ramps = [np.clip((at - low) / (high - low), 0, 1) for low, high in pairwise(knots)]
    return np.stack([np.ones_like(at), *ramps], axis=-1)
