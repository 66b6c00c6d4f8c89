"""Fits a taught profile: a normal posterior over logarithms of factors, by Gauss-Newton steps.

The model and its prior are those of ``predict/served/taught_pass.py`` without the smooth part, so only a few factors
are fitted. Rows that contradict the others have less weight (Student's t with ``FREEDOM`` degrees of freedom). The
noise of a row is estimated together with the fit.

References:
    Lange, Little and Taylor 1989, Robust statistical modeling using the t distribution, J. Am. Stat. Assoc. 84:881 (the
    weights and the scale).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.statistics import Z90
from chipwise.deploy.teach.observations import Observations
from chipwise.predict.served.taught_pass import EXTRA, EXTRA_SHARE, GROUPS, TERMS

FREEDOM = 4.0
TAIL = 2.132 / Z90  # 90 % of Student's t with this many degrees of freedom lies within 2.132 scales
COUNTED = ("kernels", "passes")
GROUP_SD = 0.4  # standard deviation of the logarithm of a group
LABEL_SD = 0.1
EXTRA_SD = 2.0  # standard deviation of the logarithm of a group that the sheet may have left out
LOOSE = 0.6  # a sheet with a larger deviation does not constrain its groups
NOISE_ROWS = 4.0  # weight of the usual noise against that of the table, in rows
LEAST_NOISE = 0.003
STEPS = 25
NOISE_STEPS = 4
LONGEST_STEP = 1.5  # largest change of a logarithm per Gauss-Newton step
COARSE = (6.0, 3.0, 1.7)  # factors on the deviations in the first steps, so that no row is down-weighted too early


CHECKED = 0.4
"""If a data sheet's errors have a smaller standard deviation, chipwise's formulas for its runtime were fitted to runs
by many people. Most tables for such a runtime contain runs by many people, too."""


def usual_noise(common: float) -> float:
    """Prior of the noise in one measured row; ``common``: standard deviation of the data sheet's predictions."""
    return 0.09 if common < CHECKED else 0.04


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Data of a fit that do not change with the fitted logarithms: passes, units and labels."""

    seen: Observations
    units: Float64Array
    labels: tuple[str, ...]
    shifts: Float64Array  # 1 if a pass has the label, (n, 2, labels)
    common: float  # standard deviation of the common factor

    @classmethod
    def of(cls, seen: Observations, *, common: float) -> Frame:
        """Prepares a fit to ``seen``."""
        units = np.ones(len(TERMS))
        terms = seen.terms[seen.share > 0]
        sheet = terms[:, : len(GROUPS)].sum(axis=1)
        for name in EXTRA:
            place = TERMS.index(name)
            there = terms[:, place] > 0
            most = np.quantile(terms[there, place] / sheet[there], 0.9) if there.any() else 1.0
            units[place] = EXTRA_SHARE / len(EXTRA) / most
            if name not in COUNTED:  # seconds at the sheet's peaks: other passes may contain far more of them
                units[place] = min(units[place], EXTRA_SHARE)
        labels = tuple(sorted({name for both in seen.labels for names in both for name in names}))
        return cls(seen=seen, units=units, labels=labels, shifts=label_matrix(seen, labels), common=common)

    def prior(self) -> Float64Array:
        """Prior variances of the logarithms: of the common factor, of terms and of labels.

        If the sheet's interval is narrow, the sheet was validated on similar machines, so the prior variances of terms
        are small.
        """
        sure = min(1.0, self.common / LOOSE)
        return np.concatenate(
            [
                [self.common**2],
                np.full(len(GROUPS), (sure * GROUP_SD) ** 2),
                np.full(len(EXTRA), (sure * EXTRA_SD) ** 2),
                np.full(len(self.labels), LABEL_SD**2),
            ]
        )

    def linear(
        self, asked: Observations, shifts: Float64Array, theta: Float64Array
    ) -> tuple[Float64Array, Float64Array]:
        """Log seconds of the quantities at ``theta``, (n,), and their derivatives, (n, size)."""
        g = len(TERMS)
        raised = asked.terms * self.units * np.exp(theta[1 : 1 + g])
        total = raised.sum(axis=-1, keepdims=True)
        rows = np.concatenate([np.ones_like(total), raised / total, shifts], axis=-1)
        parts = asked.share * np.exp(np.log(total[..., 0]) + theta[0] + shifts @ theta[1 + g :])
        whole = parts.sum(axis=-1)
        return np.log(whole), ((parts / whole[:, None])[..., None] * rows).sum(axis=1)


def label_matrix(seen: Observations, labels: Sequence[str]) -> Float64Array:
    """Returns an array (n, 2, labels) that is 1 where a pass has a label."""
    return np.array([[[float(name in names) for name in labels] for names in both] for both in seen.labels])


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """A fit: the logarithms, their covariance, each row's weight (1 if it agrees), and the noise of a row."""

    frame: Frame
    noise: float
    theta: Float64Array
    covariance: Float64Array
    weights: Float64Array

    def predict(self, asked: Observations) -> tuple[Float64Array, Float64Array]:
        """Log seconds of ``asked``, (n,), and their standard deviations for a new measurement."""
        logs, slopes = self.frame.linear(asked, label_matrix(asked, self.frame.labels), self.theta)
        unseen = [max(len(set(names).difference(self.frame.labels)) for names in both) for both in asked.labels]
        variance = ((slopes @ self.covariance) * slopes).sum(axis=1) + self.noise**2
        return logs, TAIL * np.sqrt(variance + np.array(unseen) * LABEL_SD**2)


def fit(seen: Observations, *, common: float) -> Posterior:
    """The posterior given ``seen``; the noise is estimated from ``seen`` too."""
    frame = Frame.of(seen, common=common)
    found = settle(frame, usual_noise(common))
    for _ in range(NOISE_STEPS):
        found = settle(frame, _noise(found), start=found.theta, steps=6)
    return found


def _noise(found: Posterior) -> float:
    """Estimates the noise of a row from the residuals of a fit and the prior :func:`usual_noise`."""
    seen = found.frame.seen
    logs, slopes = found.frame.linear(seen, found.frame.shifts, found.theta)
    error = np.log(seen.seconds) - logs
    taken = ((slopes @ found.covariance) * slopes).sum(axis=1) * found.weights / found.noise**2
    squares = NOISE_ROWS * usual_noise(found.frame.common) ** 2 + float((found.weights * error**2).sum())
    return max(LEAST_NOISE, math.sqrt(squares / (NOISE_ROWS + max(0.0, len(seen) - float(taken.sum())))))


def settle(frame: Frame, noise: float, *, start: Float64Array | None = None, steps: int = STEPS) -> Posterior:
    """Takes Gauss-Newton steps from ``start`` (by default the best common factor) until convergence."""
    seen, prior = frame.seen, frame.prior()
    target = np.log(seen.seconds)
    theta = np.zeros(len(prior)) if start is None else start
    if start is None:
        gap = float(np.median(target - np.log(seen.sheet_s)))
        theta[0] = gap * prior[0] / (prior[0] + noise**2 / len(seen))
    weights = np.ones(len(seen))
    covariance = np.diag(prior)
    coarse = COARSE if start is None else ()
    for wider in (*coarse, *([1.0] * steps)):
        logs, slopes = frame.linear(seen, frame.shifts, theta)
        error = target - logs
        doubt = (wider * noise) ** 2
        weights = np.minimum((FREEDOM + 1) / (FREEDOM + error**2 / doubt), 1.0)
        covariance, move = normal_update(slopes, error + slopes @ theta, weights / doubt, prior)
        change = np.clip(move - theta, -LONGEST_STEP, LONGEST_STEP)
        theta = theta + change
        if wider == 1.0 and np.abs(change).max() < 1e-4:
            break
    return Posterior(frame=frame, noise=noise, theta=theta, covariance=covariance, weights=weights)


def normal_update(
    slopes: Float64Array, target: Float64Array, precision: Float64Array, prior: Float64Array
) -> tuple[Float64Array, Float64Array]:
    """Covariance and mean of the logarithms given ``target``, under a normal prior around 0."""
    scale = np.sqrt(prior)
    scaled = slopes * scale
    information = (scaled.T * precision) @ scaled
    information[np.diag_indices_from(information)] += 1.0
    inverse = np.linalg.inv(information)
    covariance = scale[:, None] * inverse * scale
    return covariance, scale * (inverse @ (scaled.T @ (precision * target)))
