"""Surrogate of quality: predicts a design's quality and its uncertainty from the trials so far.

Without trials it returns the problem's prior; with few trials it combines prior and trials; with many it relies on the
trials. Short trials (such as those with 10 % of the training budget) are used as earlier points of a design's learning
curve.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from chipwise.core.arrays import Float64Array
from chipwise.design.strategies.encoding import Encoder
from chipwise.design.strategies.gaussian_process import GaussianProcess, spread
from chipwise.design.strategies.strategy import Problem, Rows

_PRIOR_SLOPE = 0.7  # correlation between a stated prior and results that is assumed before any trial
_MOST = 600  # most observations in one model; the least informative observations are left out
_FIRST_STEPS, _MORE_STEPS = 50, 12


class QualityModel:
    """Surrogate of one expensive quantity of rows: ``fit`` to trials, then ``predict`` mean and standard deviation.

    Args:
        problem: The space, with its prior and its free costs (those that need no trial).
        seed: Seed for sampling the space.
        prior: Whether the problem's prior is a guess of this quantity.
        encoder: An existing encoder of the same problem.
    """

    def __init__(self, problem: Problem, *, seed: int, prior: bool = True, encoder: Encoder | None = None) -> None:
        self.problem = problem
        self.encoder = encoder or Encoder(problem, seed=seed)
        self._prior = problem.prior_values if prior and problem.prior is not None else None
        self._prior_mean, self._prior_std = 0.0, 1.0
        if self._prior is not None:
            guesses = self._prior(problem.draw(512, np.random.default_rng([seed, 2])))
            self._prior_mean, self._prior_std = float(guesses.mean()), float(guesses.std()) or 1.0
        groups = self.encoder.groups
        last = int(groups.max()) + 1 if len(groups) else 0
        self._gp = GaussianProcess(np.r_[groups, last, last + 1] if self._prior is not None else np.r_[groups, last])
        self._scale = 1.0
        self._fitted = False

    def columns(
        self, rows: Rows, costs: Float64Array | None = None, violations: Float64Array | None = None
    ) -> Float64Array:
        """The model's inputs for full trials of ``rows``; callers can keep them to predict the same rows again."""
        rows = np.asarray(rows, np.int64)
        parts = [self.encoder.encode(rows, costs, violations)]
        if self._prior is not None:
            guess = (self._prior(rows) - self._prior_mean) / self._prior_std
            parts.append(guess[:, None])
        return np.hstack([*parts, np.zeros((len(rows), 1))])

    def fit(
        self,
        rows: Rows,
        values: ArrayLike,
        *,
        noise: ArrayLike | None = None,
        fidelity: ArrayLike | None = None,
        costs: Float64Array | None = None,
        violations: Float64Array | None = None,
    ) -> QualityModel:
        """Fits the model to all trials so far.

        Args:
            rows: (n, d); a row may occur at several fidelities.
            values: Results of the trials, (n,).
            noise: Standard deviation of each value where known (between seeds, for example), (n,).
            fidelity: Share of the full training budget that each trial had, in (0, 1], (n,); 1 by default.
            costs: Free goals of the rows, to be minimised, (n, m_free), if the caller knows them.
            violations: Violations of the free limits, (n, k_free), if the caller knows them.
        """
        Z, y = self.columns(rows, costs, violations), np.asarray(values, float)
        if fidelity is not None:
            Z[:, -1] = -np.log(np.clip(np.asarray(fidelity, float), 1e-6, 1.0))
        variance = None if noise is None else np.asarray(noise, float) ** 2
        self._scale = spread(y)
        steps = _MORE_STEPS if self._fitted else _FIRST_STEPS
        self._fitted = len(y) > 3
        self._gp.fit(Z, y - self._opinion(Z), noise=variance, steps=steps)
        return self

    def predict(self, rows: Rows) -> tuple[Float64Array, Float64Array]:
        """Means and standard deviations of the results expected from full trials of ``rows``, both (n,)."""
        return self.predict_columns(self.columns(rows))

    def predict_columns(self, columns: Float64Array) -> tuple[Float64Array, Float64Array]:
        """The prediction of :meth:`predict` from inputs that :meth:`columns` returned."""
        mean, std = self._gp.predict(columns)
        return mean + self._opinion(columns), std

    def covariance(self, columns: Float64Array) -> Float64Array:
        """Covariance between the predictions for inputs that :meth:`columns` returned, (n, n)."""
        return self._gp.covariance(columns)

    @property
    def noise_variance(self) -> float:
        """Noise variance of a trial's value around the prediction."""
        return self._gp.noise_variance

    def _opinion(self, columns: Float64Array) -> Float64Array:
        if self._prior is None:
            return np.zeros(len(columns))
        return np.asarray(_PRIOR_SLOPE * self._scale * columns[:, -2])


def worth_keeping(rank: ArrayLike, rng: np.random.Generator, *, most: int = _MOST) -> NDArray[np.int64]:
    """Selects at most ``most`` observations: those with the lowest ``rank``, and others at random.

    Args:
        rank: Rank of each observation, lower if closer to the front, (n,).
        rng: Generator with which the other observations are chosen.
        most: Largest number of observations to select.
    """
    rank = np.asarray(rank)
    n = len(rank)
    if n <= most:
        return np.arange(n)
    order = np.argsort(rank, kind="stable")
    best, rest = order[: 2 * most // 3], order[2 * most // 3 :]
    return np.sort(np.r_[best, rng.choice(rest, most - len(best), replace=False)])
