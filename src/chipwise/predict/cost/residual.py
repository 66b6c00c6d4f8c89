"""Corrections from whole models: a factor for each part of a pass, then a smooth residual.

A profile's rates are measured on graphs with one kind of node each. In a whole model the caches hold other data, so
each part of a pass (products by weight format, attention, norms, …) gets a factor, fitted to measured models and
regularised towards 1. The remaining error is a smooth function of a few features of the model: a Gaussian process on
its logarithm that falls to zero far from measured models. Fitting is in ``deploy/calibrate/learning.py``.

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
    """Correction factors (n,) on the summed ``parts`` (n, groups): seconds by group in the order of ``names``.

    ``figures`` (n, figures) are :data:`FIGURES` of the uncorrected passes.
    """
    scales = np.array([residual.scales.get(name, 1.0) for name in names])
    total = parts.sum(axis=-1)
    factor: Float64Array = parts @ scales / np.maximum(total, 1e-300)
    if residual.points:
        factor = factor * np.exp(_kernel(figures, np.asarray(residual.points)) @ np.asarray(residual.weights))
    return factor


def doubt(figures: Float64Array, residual: Residual) -> Float64Array:
    """Standard deviation (n,) of the smooth residual's logarithm: near 0 at measured models, AMPLITUDE far away."""
    if not residual.points:
        return np.full(figures.shape[:-1], AMPLITUDE)
    near = _kernel(figures, np.asarray(residual.points))
    known = ((near @ _inverse(residual.points)) * near).sum(axis=-1)
    deviation: Float64Array = np.sqrt(np.maximum(AMPLITUDE**2 - known, 0.0))
    return deviation


def smooth(figures: Float64Array, logs: Float64Array) -> Float64Array:
    """Weights of the points ``figures`` (n, figures) for a smooth residual that fits ``logs`` (n,)."""
    weights = np.linalg.solve(_kernel(figures, figures) + NOISE**2 * np.eye(len(logs)), logs)
    return np.asarray(weights, np.float64)


@lru_cache(maxsize=16)
def _inverse(points: tuple[tuple[float, ...], ...]) -> Float64Array:
    held = np.asarray(points)
    inverse = np.linalg.inv(_kernel(held, held) + NOISE**2 * np.eye(len(held)))
    return np.asarray(inverse, np.float64)


def _kernel(first: Float64Array, second: Float64Array) -> Float64Array:
    """Covariances (n, m) of the smooth residual between two sets of figures."""
    a, b = first / np.asarray(SCALES), second / np.asarray(SCALES)
    squares = (a**2).sum(-1)[..., None] + (b**2).sum(-1) - 2 * a @ b.T
    covariance: Float64Array = AMPLITUDE**2 * np.exp(-np.maximum(squares, 0.0) / (2 * REACH**2))
    return covariance
