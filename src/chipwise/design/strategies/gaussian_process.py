"""Gaussian process for designs that consist of many small parts, with few observations.

The covariance is the sum of three terms: additive effects of the parts, their interactions (the square of the additive
kernel), and a smooth remainder (squared exponential). Every group of columns has a weight in each term. Weights
maximise the marginal likelihood under a prior that keeps them similar, so that 100 observations of 75 variables do not
overfit.

References:
    Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, ch. 2 and 5; Igel and Hüsken, Improving the
    Rprop Learning Algorithm, 2000 (the optimiser, which needs only the signs of gradients).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import Float64Array

_CONSTANT = 4.0  # prior variance of the mean, in units of the variance of the values
_JITTER = 1e-8
_SEARCHED = 300  # with more observations than this, the hyperparameter search takes fewer steps
_CHUNK = 512  # rows predicted at a time, so that their covariances fit in the cache
_LAST_STEPS = 3  # fewest steps of the search on all observations
_SPREAD = 1.0  # prior standard deviation of log weights within a block
_LEVEL = 3.0  # prior standard deviation of a block's mean log weight


class GaussianProcess:
    """Gaussian-process regression on feature columns (n, p); the columns of a group share one weight.

    Args:
        groups: Index of the weight that each column uses, (p,), consecutive from 0.
    """

    def __init__(self, groups: NDArray[np.int64]) -> None:
        self.groups = np.asarray(groups, np.int64)
        self._g = int(self.groups.max()) + 1 if len(self.groups) else 0
        even = np.full(self._g, -np.log(max(self._g, 1)))
        # logarithms of: additive weights, inverse squared length scales, share squared, share smooth, noise
        self._h = np.concatenate([even, even, np.log([0.1, 0.03, 1e-3])])
        self._start = self._h.copy()
        self._Z: Float64Array = np.zeros((0, len(self.groups)))
        self._mean, self._std, self._calibration = 0.0, 1.0, 1.0
        self._inverse: Float64Array = np.zeros((0, 0))
        self._alpha: Float64Array = np.zeros(0)
        self._searched = False

    def fit(
        self, Z: Float64Array, values: Float64Array, *, noise: Float64Array | None = None, steps: int = 40
    ) -> GaussianProcess:
        """Fits the process to ``values`` (n,) at ``Z`` (n, p).

        Args:
            noise: Known noise variance of each value, (n,); an additional common noise is estimated.
            steps: Steps of the hyperparameter search, which starts from the result of the last fit.
        """
        n = len(values)
        self._mean = float(values.mean()) if n else 0.0
        self._std = spread(values)
        target = (values - self._mean) / self._std
        level: Float64Array = np.zeros(n) if noise is None else noise / self._std**2
        if n > 3 and steps:
            self._search(Z, target, level, steps)
        self._Z = Z
        additive, smooth = self._parts(self._h, Z, Z)
        K = self._covariance(self._h, additive, smooth)
        K[np.diag_indices(n)] += np.exp(self._h[-1]) + level + _JITTER
        self._inverse = np.asarray(np.linalg.inv(K), np.float64)
        self._alpha = self._inverse @ target
        if n > 8:  # calibrate the standard deviations by leave-one-out errors
            z2 = self._alpha**2 / np.diag(self._inverse)
            self._calibration = float(np.clip(np.sqrt(z2.mean()), 0.7, 2.0))
        return self

    def _search(self, Z: Float64Array, target: Float64Array, level: Float64Array, steps: int) -> None:
        """Fits hyperparameters; for many observations, fits a subset first and then takes only a few steps on all."""
        n = len(target)
        few = min(steps, max(_LAST_STEPS, int(steps * (_SEARCHED / n) ** 2)))
        if not self._searched and steps > 2 * few:
            part = np.linspace(0, n - 1, _SEARCHED // 2).astype(np.int64)
            self._h = _rprop(lambda h: self._loss(h, Z[part], target[part], level[part]), self._h, steps)
            few = _LAST_STEPS
        self._h = _rprop(lambda h: self._loss(h, Z, target, level), self._h, few)
        self._searched = True

    def predict(self, Z: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Means and standard deviations at the rows of ``Z``, without observation noise."""
        parts = [self._predict(Z[start : start + _CHUNK]) for start in range(0, max(len(Z), 1), _CHUNK)]
        mean, std = (np.concatenate(items) for items in zip(*parts, strict=True))
        return mean, std

    def _predict(self, Z: Float64Array) -> tuple[Float64Array, Float64Array]:
        Ks = self._covariance(self._h, *self._parts(self._h, Z, self._Z))
        variance = self._prior_variance(Z) - ((Ks @ self._inverse) * Ks).sum(axis=1)
        std = np.sqrt(np.maximum(variance, 1e-12)) * self._std * self._calibration
        return Ks @ self._alpha * self._std + self._mean, std

    def covariance(self, Z: Float64Array) -> Float64Array:
        """Posterior covariance between the rows of ``Z``, (n, n)."""
        Ks = self._covariance(self._h, *self._parts(self._h, Z, self._Z))
        prior = self._covariance(self._h, *self._parts(self._h, Z, Z))
        return np.asarray((prior - Ks @ self._inverse @ Ks.T) * (self._std * self._calibration) ** 2)

    @property
    def noise_variance(self) -> float:
        """Noise variance that all observations share, in squared units of the values."""
        return float(np.exp(self._h[-1]) + _JITTER) * self._std**2

    def _parts(self, h: Float64Array, A: Float64Array, B: Float64Array) -> tuple[Float64Array, Float64Array]:
        weights, scales = np.exp(h[: self._g])[self.groups], np.exp(0.5 * h[self._g : 2 * self._g])[self.groups]
        a, b = A * scales, B * scales
        distance = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1) - 2 * a @ b.T
        return (A * weights) @ B.T, np.exp(-0.5 * np.maximum(distance, 0))

    @staticmethod
    def _covariance(h: Float64Array, additive: Float64Array, smooth: Float64Array) -> Float64Array:
        squared, rest = np.exp(h[-3:-1])
        return np.asarray(_CONSTANT + additive * (1 + squared * additive) + rest * smooth)

    def _prior_variance(self, Z: Float64Array) -> Float64Array:
        additive = (Z * Z) @ np.exp(self._h[: self._g])[self.groups]
        return self._covariance(self._h, additive, np.ones(len(Z)))

    def _loss(
        self, h: Float64Array, Z: Float64Array, y: Float64Array, level: Float64Array
    ) -> tuple[float, Float64Array]:
        """Negative log posterior of the hyperparameters (up to a constant) and its gradient."""
        g, n = self._g, len(y)
        additive, smooth = self._parts(h, Z, Z)
        K = self._covariance(h, additive, smooth)
        squared, rest, noise = np.exp(h[-3:])
        K[np.diag_indices(n)] += noise + level + _JITTER
        root = np.linalg.cholesky(K)
        inverse = np.linalg.inv(K)
        alpha = inverse @ y
        loss = 0.5 * float(y @ alpha) + float(np.log(np.diag(root)).sum())
        M = 0.5 * (inverse - np.outer(alpha, alpha))  # derivative of the loss with respect to K
        slope = np.zeros_like(h)
        W = M * (1 + 2 * squared * additive)
        slope[:g] = np.bincount(self.groups, (Z * (W @ Z)).sum(axis=0), g) * np.exp(h[:g])
        W = M * smooth * rest
        pairs = (Z * (W @ Z)).sum(axis=0) - W.sum(axis=1) @ (Z * Z)
        slope[g : 2 * g] = np.bincount(self.groups, pairs, g) * np.exp(h[g : 2 * g])
        slope[-3] = (M * additive * additive).sum() * squared
        slope[-2] = W.sum()
        slope[-1] = np.trace(M) * noise
        prior, prior_slope = self._prior(h)
        return loss + prior, slope + prior_slope

    def _prior(self, h: Float64Array) -> tuple[float, Float64Array]:
        away = h - self._start
        loss, slope = 0.0, np.zeros_like(h)
        for block in (slice(0, self._g), slice(self._g, 2 * self._g)):
            if self._g:
                level = away[block].mean()
                apart = away[block] - level
                loss += 0.5 * float(apart @ apart) / _SPREAD**2 + 0.5 * level**2 / _LEVEL**2
                slope[block] = apart / _SPREAD**2 + level / _LEVEL**2 / self._g
        loss += 0.5 * float(away[-3:] @ away[-3:]) / _LEVEL**2
        slope[-3:] = away[-3:] / _LEVEL**2
        return loss, slope


def spread(values: Float64Array) -> float:
    """Standard deviation of the values, or a default if there are fewer than three values or all are equal."""
    if len(values) > 2 and values.std() > 0:
        return float(values.std())
    return max(0.05 * abs(float(values.mean())), 1e-9) if len(values) else 1.0


def _rprop(loss: Callable[[Float64Array], tuple[float, Float64Array]], start: Float64Array, steps: int) -> Float64Array:
    """The best point found in ``steps`` steps of Rprop from ``start``."""
    point, best, best_loss = start.copy(), start.copy(), np.inf
    step, last = np.full(len(start), 0.3), np.zeros(len(start))
    for _ in range(steps):
        try:
            value, slope = loss(point)
        except np.linalg.LinAlgError:
            point, step = 0.5 * (point + best), step * 0.5
            continue
        if value < best_loss:
            best, best_loss = point.copy(), value
        same = slope * last
        step = np.clip(np.where(same > 0, step * 1.2, np.where(same < 0, step * 0.5, step)), 1e-3, 1.0)
        slope = np.where(same < 0, 0.0, slope)
        point = np.clip(point - np.sign(slope) * step, -14, 6)
        last = slope
    return best
