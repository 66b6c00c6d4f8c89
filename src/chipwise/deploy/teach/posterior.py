"""Fitting a taught profile: a normal distribution over logarithms, by Gauss-Newton steps on robust residuals.

The model and its prior are those of ``predict/served/taught_pass.py`` without its smooth part: a few factors. Rows that
contradict the rest weigh less (Student's t with ``FREEDOM`` degrees). The noise of a row is estimated beside the fit.

References:
    Lange, Little and Taylor 1989, Robust statistical modeling using the t distribution, J. Am. Stat. Assoc. 84:881 (the
    weights and the scale).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.statistics import Z90
from chipwise.deploy.teach.observations import Observations, Places
from chipwise.predict.served.taught_pass import EXTRA, EXTRA_SHARE, GROUPS, TERMS

FREEDOM = 4.0
TAIL = 2.132 / Z90  # nine of ten of Student's t with so many degrees lie within 2.132 of its scales
COUNTED = ("kernels", "passes")
EXTRA_SD = 2.0  # of the logarithm of a group that the sheet may have left out
LOOSE = 0.6  # deviation of a sheet's interval beyond which nothing holds its groups together
NOISE_ROWS = 4.0  # that the usual noise weighs against that of the table
LEAST_NOISE = 0.003
STEPS = 25
NOISE_STEPS = 4
LONGEST_STEP = 1.5  # of a logarithm, in one Gauss-Newton step
COARSE = (6.0, 3.0, 1.7)  # times the deviations in the first steps, so that no row is given up before it is explained


@dataclass(frozen=True, slots=True, kw_only=True)
class Strengths:
    """Standard deviations, in logarithms: of one row's noise, of groups and of labels."""

    noise: float = 0.04
    group: float = 0.4
    label: float = 0.1


CHECKED, CHECKED_NOISE = 0.4, 0.09
"""Where a sheet's deviation is below the first, its runtime was fitted to runs of many people, and so are most tables:
a row is as noisy as the second says."""


def usual_strengths(common: float) -> Strengths:
    """Those of a table on a sheet whose deviation is ``common``."""
    return Strengths(noise=CHECKED_NOISE) if common < CHECKED else Strengths()


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Fixed parts of a fit while logarithms change: passes, units and labels."""

    seen: Observations
    units: Float64Array
    labels: tuple[str, ...]
    shifts: Float64Array  # (passes, labels)
    common: float  # standard deviation of the common factor

    @classmethod
    def of(cls, seen: Observations, *, common: float) -> Frame:
        """The frame of a fit to ``seen``."""
        units = np.ones(len(TERMS))
        sheet = seen.terms[:, : len(GROUPS)].sum(axis=1)
        for name in EXTRA:
            place = TERMS.index(name)
            there = seen.terms[:, place] > 0
            most = np.quantile(seen.terms[there, place] / sheet[there], 0.9) if there.any() else 1.0
            units[place] = EXTRA_SHARE / len(EXTRA) / most
            if name not in COUNTED:  # seconds at the sheet's peaks: passes of another sort may hold far more of them
                units[place] = min(units[place], EXTRA_SHARE)
        labels = tuple(sorted({name for names in seen.labels for name in names}))
        return cls(
            seen=seen,
            units=units,
            labels=labels,
            shifts=label_matrix(seen, labels),
            common=common,
        )

    @property
    def size(self) -> int:
        """Number of logarithms."""
        return 1 + len(TERMS) + len(self.labels)

    def prior(self, strengths: Strengths) -> Float64Array:
        """(size,): their variances before anything was measured.

        A sheet whose interval is narrow was checked on machines of its kind: its groups of operators are as right.
        """
        sure = min(1.0, self.common / LOOSE)
        return np.concatenate(
            [
                [self.common**2],
                np.full(len(GROUPS), (sure * strengths.group) ** 2),
                np.full(len(EXTRA), (sure * EXTRA_SD) ** 2),
                np.full(len(self.labels), strengths.label**2),
            ]
        )


def label_matrix(seen: Observations, labels: Sequence[str]) -> Float64Array:
    """(passes, labels): 1 if a pass has the label."""
    place = {name: i for i, name in enumerate(labels)}
    found = np.zeros((len(seen.labels), len(labels)))
    for p, names in enumerate(seen.labels):
        for name in names:
            if name in place:
                found[p, place[name]] = 1.0
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """Predicted logarithms of the quantities, and how they move with the fitted ones."""

    logs: Float64Array  # (n,)
    slopes: Float64Array  # (n, size)


def linearise(frame: Frame, seen: Observations, theta: Float64Array, shifts: Float64Array) -> Linear:
    """The model at ``theta`` for the passes of ``seen``, whose terms count in the frame's units.

    Args:
        frame: Of the fit.
        seen: Passes and the quantities that they add up to.
        theta: (size,) logarithms: the common one, of terms and of labels.
        shifts: (passes, labels)
    """
    n, g = len(seen), len(TERMS)
    raised = seen.terms * frame.units * np.exp(theta[1 : 1 + g])
    total = raised.sum(axis=1)
    rows = np.hstack([np.ones((len(total), 1)), raised / total[:, None], shifts])
    log_pass = np.log(total) + theta[0] + rows[:, 1 + g :] @ theta[1 + g :]
    parts = seen.share * np.exp(log_pass)
    whole = np.bincount(seen.owner, parts, minlength=n)
    weights = parts / whole[seen.owner]
    first = np.searchsorted(seen.owner, np.arange(n))  # passes stand in the order of their quantities
    slopes = np.add.reduceat(weights[:, None] * rows, first, axis=0)
    return Linear(logs=np.log(whole), slopes=slopes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """A fit: the logarithms, their covariance, and the weight of each row."""

    frame: Frame
    strengths: Strengths
    theta: Float64Array
    covariance: Float64Array
    weights: Float64Array  # (n,) 1 for a row that agrees, less for one that does not

    def predict(self, asked: Observations) -> tuple[Float64Array, Float64Array]:
        """(n,) logarithms of seconds, and their standard deviations for a new measurement."""
        found = linearise(self.frame, asked, self.theta, label_matrix(asked, self.frame.labels))
        variance = ((found.slopes @ self.covariance) * found.slopes).sum(axis=1) + self.strengths.noise**2
        unseen = np.array([sum(name not in self.frame.labels for name in names) for names in asked.labels])
        worst = np.zeros(len(asked))
        np.maximum.at(worst, asked.owner, unseen)
        return found.logs, TAIL * np.sqrt(variance + worst * self.strengths.label**2)


def fit(seen: Observations, *, common: float, strengths: Strengths | None = None) -> Posterior:
    """The posterior after ``seen``; the noise is learnt from it unless strengths are given."""
    frame = Frame.of(seen, common=common)
    if strengths is not None:
        return settle(frame, strengths)
    chosen = usual_strengths(common)
    found = settle(frame, chosen)
    for _ in range(NOISE_STEPS):
        chosen = replace(chosen, noise=_noise(found, usual=usual_strengths(common).noise))
        found = settle(frame, chosen, start=found.theta, steps=6)
    return found


def _noise(found: Posterior, *, usual: float) -> float:
    """Deviation of a row about the fit, with the degrees of freedom that the fit took, and the usual one as prior."""
    seen = found.frame.seen
    at = linearise(found.frame, seen, found.theta, found.frame.shifts)
    error = np.log(seen.seconds) - at.logs
    taken = ((at.slopes @ found.covariance) * at.slopes).sum(axis=1) * found.weights / found.strengths.noise**2
    squares = NOISE_ROWS * usual**2 + float((found.weights * error**2).sum())
    return max(LEAST_NOISE, math.sqrt(squares / (NOISE_ROWS + max(0.0, len(seen) - float(taken.sum())))))


def settle(
    frame: Frame,
    strengths: Strengths,
    *,
    start: Float64Array | None = None,
    steps: int = STEPS,
) -> Posterior:
    """Gauss-Newton steps from ``start`` (the common factor that fits best, unless given) until nothing moves."""
    seen = frame.seen
    target = np.log(seen.seconds)
    prior = frame.prior(strengths)
    theta = np.zeros(frame.size) if start is None else start.copy()
    if start is None:
        gap = float(np.median(target - np.log(seen.sheet_s)))
        theta[0] = gap * prior[0] / (prior[0] + strengths.noise**2 / len(seen))
    weights = np.ones(len(seen))
    covariance = np.diag(prior)
    coarse = COARSE if start is None else ()
    for wider in (*coarse, *([1.0] * steps)):
        at = linearise(frame, seen, theta, frame.shifts)
        error = target - at.logs
        doubt = (wider * strengths.noise) ** 2
        weights = (FREEDOM + 1) / (FREEDOM + error**2 / doubt)
        weights = np.minimum(weights, 1.0)
        covariance, move = normal_update(at.slopes, error + at.slopes @ theta, weights / doubt, prior)
        change = np.clip(move - theta, -LONGEST_STEP, LONGEST_STEP)
        theta = theta + change
        if wider == 1.0 and np.abs(change).max() < 1e-4:
            break
    return Posterior(frame=frame, strengths=strengths, theta=theta, covariance=covariance, weights=weights)


def normal_update(
    slopes: Float64Array, target: Float64Array, precision: Float64Array, prior: Float64Array
) -> tuple[Float64Array, Float64Array]:
    """Covariance and mean of the logarithms after ``target``, under a normal prior about 0."""
    scale = np.sqrt(prior)
    scaled = slopes * scale
    information = (scaled.T * precision) @ scaled
    information[np.diag_indices_from(information)] += 1.0
    inverse = np.linalg.inv(information)
    covariance = scale[:, None] * inverse * scale
    return covariance, scale * (inverse @ (scaled.T @ (precision * target)))


def groups_of(models: Sequence[str]) -> list[Places]:
    """Places of the rows of each model."""
    found: dict[str, list[int]] = {}
    for i, name in enumerate(models):
        found.setdefault(name, []).append(i)
    return [np.array(places) for places in found.values()]
