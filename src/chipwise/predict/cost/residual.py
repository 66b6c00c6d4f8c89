"""Corrections learnt from whole models: a factor for each part of a pass, then a smooth correction of the whole pass.

Calibration measures each rate on a graph with only one kind of node. In a whole model the caches also hold the data of
other nodes. So each part of a pass (matrix products by weight format, attention, norms, …) gets a factor, which is
fitted to measured models and regularised towards 1. A Gaussian process then predicts the logarithm of the remaining
error from a few features of the model; far from measured models it predicts zero. ``deploy/calibrate/learning.py`` fits
both.

References:
    Rasmussen and Williams 2006, Gaussian Processes for Machine Learning, equations 2.25 and 2.26.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.hardware.device import Residual

FIGURES = ("log_seconds", "log_working_set", "log_nodes", "log_logits", "int8_share", "int4_share")
SCALES = (0.6, 0.8, 0.5, 0.7, 0.4, 0.4)  # length scale of each feature
REACH = 4.0  # correlation length over all features, in these scales
AMPLITUDE = 0.07  # standard deviation of the smooth residual, in logarithms
NOISE = 0.04  # noise of one measured model's residual
MOST_POINTS = 200


def factors(parts: Float64Array, figures: Float64Array, residual: Residual, names: tuple[str, ...]) -> Float64Array:
    """Correction factors (n,) for the times of n passes.

    Args:
        parts: Seconds of each part of each pass, (n, parts).
        figures: Features of the uncorrected passes, see :data:`FIGURES`, (n, features).
        residual: The fitted corrections.
        names: Names of the parts.
    """
    scales = np.array([residual.scales.get(name, 1.0) for name in names])
    total = parts.sum(axis=-1)
    factor: Float64Array = parts @ scales / np.maximum(total, 1e-300)
    if residual.points:
        factor = factor * np.exp(_kernel(figures, np.asarray(residual.points)) @ np.asarray(residual.weights))
    return factor


def doubt(figures: Float64Array, residual: Residual) -> Float64Array:
    """Standard deviation (n,) of the smooth correction's logarithm: small near measured models, AMPLITUDE far away."""
    if not residual.points:
        return np.full(figures.shape[:-1], AMPLITUDE)
    near = _kernel(figures, np.asarray(residual.points))
    known = ((near @ _inverse(residual.points)) * near).sum(axis=-1)
    deviation: Float64Array = np.sqrt(np.maximum(AMPLITUDE**2 - known, 0.0))
    return deviation


def smooth(figures: Float64Array, logs: Float64Array) -> Float64Array:
    """Weights (n,) of n measured models in a Gaussian process, fitted to ``logs`` (n,).

    ``figures`` (n, features) are the features of the models, see :data:`FIGURES`.
    """
    weights = np.linalg.solve(_kernel(figures, figures) + NOISE**2 * np.eye(len(logs)), logs)
    return np.asarray(weights, np.float64)


@lru_cache(maxsize=16)
def _inverse(points: tuple[tuple[float, ...], ...]) -> Float64Array:
    held = np.asarray(points)
    inverse = np.linalg.inv(_kernel(held, held) + NOISE**2 * np.eye(len(held)))
    return np.asarray(inverse, np.float64)


def _kernel(first: Float64Array, second: Float64Array) -> Float64Array:
    """Covariances (n, m) of the Gaussian process between two sets of feature vectors."""
    a, b = first / np.asarray(SCALES), second / np.asarray(SCALES)
    squares = (a**2).sum(-1)[..., None] + (b**2).sum(-1) - 2 * a @ b.T
    covariance: Float64Array = AMPLITUDE**2 * np.exp(-np.maximum(squares, 0.0) / (2 * REACH**2))
    return covariance
