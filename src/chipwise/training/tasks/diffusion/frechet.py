"""The Fréchet distance between generated and real images, on features of a small classifier.

Both sets of features are modelled as normal distributions; the distance is |μ − μ'|² + tr(Σ + Σ' − 2 (Σ Σ')^½). It is
expressed as a mean over the generated images: an image's contribution is the distance plus the image's influence on the
distance, and influences sum to zero. The distance therefore has a standard error over images, and two models that start
from the same noise can be compared image by image.

References:
    Heusel et al. 2017, arXiv:1706.08500 (with Inception's features; distances here use another network and are
    comparable only with each other). Influence functions: Hampel 1974. The derivative in Σ: the optimal map between
    normal distributions, Bhatia et al. 2019, On the Bures-Wasserstein distance between positive definite matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from chipwise.core.arrays import Float64Array

LEAST = 1e-10  # least eigenvalue, as a share of the largest; smaller ones are rounding errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Mean (F,) and covariance (F, F) of features."""

    mean: Float64Array
    covariance: Float64Array

    @classmethod
    def of(cls, features: ArrayLike) -> Moments:
        """Mean and covariance of features (n, F)."""
        values = np.asarray(features, np.float64)
        mean = values.mean(axis=0)
        return cls(mean=mean, covariance=(values - mean).T @ (values - mean) / len(values))


def distances(features: ArrayLike, real: Moments) -> Float64Array:
    """Contributions of generated images with features (n, F) to the distance from ``real``; their mean is the distance.

    Contributions are NaN if a feature is not finite.
    """
    values = np.asarray(features, np.float64)
    if not np.isfinite(values).all():
        return np.full(len(values), np.nan)
    made = Moments.of(values)
    root = _power(real.covariance, 0.5)
    inner = root @ made.covariance @ root
    apart, centred = made.mean - real.mean, values - made.mean
    common = np.sqrt(np.clip(np.linalg.eigvalsh(inner), 0, None)).sum()
    distance = apart @ apart + np.trace(made.covariance) + np.trace(real.covariance) - 2 * common
    slope = np.eye(len(apart)) - root @ _power(inner, -0.5) @ root  # gradient by the generated images' covariance
    bent = np.einsum("nf,fg,ng->n", centred, slope, centred)
    influence = 2 * centred @ apart + bent - bent.mean()
    return np.asarray(max(0.0, float(distance)) + influence, np.float64)


def _power(matrix: Float64Array, power: float) -> Float64Array:
    """A power of a positive semidefinite matrix; zero eigenvalues stay zero."""
    values, vectors = np.linalg.eigh(matrix)
    kept = values > max(LEAST * values[-1], 0.0)
    return np.asarray((vectors[:, kept] * values[kept] ** power) @ vectors[:, kept].T, np.float64)
