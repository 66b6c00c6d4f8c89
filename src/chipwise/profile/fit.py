"""Fitting rates: non-negative least squares in relative error."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.statistics import nnls


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


def rising(knots: Any, at: Any) -> Float64Array:
    """Basis of curves that never fall: a constant, then one ramp from each knot to the next, over the logarithm."""
    knots, at = np.log2(np.asarray(knots)), np.log2(np.maximum(np.asarray(at, np.float64), 1.0))
    ramps = [np.clip((at - low) / (high - low), 0, 1) for low, high in pairwise(knots)]
    return np.stack([np.ones_like(at), *ramps], axis=-1)
