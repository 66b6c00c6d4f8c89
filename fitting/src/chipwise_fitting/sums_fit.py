"""Fits the named terms of ``predict/whole_runs/sums`` to measured runs, and computes the errors on left-out runs.

Every term is a deviation from its starting value, with a prior: a term that few runs depend on stays near its starting
value. Errors are logarithms with heavy tails, because tables by many people contain rows that contradict the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from chipwise.core.arrays import Float64Array
from chipwise.predict.whole_runs.sums import SHARPNESS, Amount, Law, Terms

STEPS = 40
REFINED = 10  # steps of a fit that leaves some runs out, starting from the fit to all
TINY = 1e-30
SAME = 5e-3  # a fold's term is not stored if it differs by less than this from the fit to all runs
Prior = Callable[[str], tuple[float, float]]
"""Function that returns a term's starting value and the standard deviation of its prior around that value."""


def at(law: Law, i: int, extra: Terms = ()) -> tuple[Amount, ...]:
    """Returns the summands of run ``i``, each with ``extra`` terms added."""
    return tuple(
        Amount(float(np.asarray(a.value).flat[i if np.ndim(a.value) else 0]), a.sum, (*a.terms, *extra)) for a in law
    )


@dataclass(frozen=True, slots=True)
class Design:
    """The amounts of all runs as one sparse table."""

    names: tuple[str, ...]
    value: Float64Array  # (amounts,)
    terms: csr_array  # (amounts, names)
    sum_of: csr_array  # (sums, amounts): which amounts belong to which sum
    run_of: csr_array  # (runs, sums)
    measured: Float64Array  # (runs,) logarithms

    @classmethod
    def of(cls, laws: Sequence[Law], measured: npt.ArrayLike, names: Sequence[str] | None = None) -> Design:
        """Builds the design of runs with these laws; ``names`` of terms are taken from the laws unless given."""
        found = tuple(sorted({name for law in laws for a in law for name, _ in a.terms})) if names is None else names
        place = {name: i for i, name in enumerate(found)}
        columns, times, starts = [], [], [0]
        sums: list[int] = []
        runs: list[int] = []
        of_amount: list[int] = []
        for r, law in enumerate(laws):
            seen: dict[int, int] = {}
            for amount in law:
                if amount.sum not in seen:
                    seen[amount.sum] = len(runs)
                    runs.append(r)
                of_amount.append(seen[amount.sum])
                for name, weight in amount.terms:
                    if name in place:
                        columns.append(place[name])
                        times.append(weight)
                starts.append(len(columns))
                sums.append(amount.sum)
        n = len(of_amount)
        one = np.ones
        return cls(
            names=tuple(found),
            value=np.array([amount.value for law in laws for amount in law], float),
            terms=csr_array((np.array(times, float), np.array(columns, int), np.array(starts)), shape=(n, len(found))),
            sum_of=csr_array((one(n), (np.array(of_amount, int), np.arange(n))), shape=(len(runs), n)),
            run_of=csr_array(
                (one(len(runs)), (np.array(runs, int), np.arange(len(runs)))), shape=(len(laws), len(runs))
            ),
            measured=np.log(np.asarray(measured, float)),
        )

    def predicted(self, theta: Float64Array) -> tuple[Float64Array, csr_array]:
        """Returns the predicted logarithms of all runs, and their derivatives with respect to the terms."""
        each = self.value * np.exp(np.clip(self.terms @ theta, -60, 60))
        powered = np.maximum(each, TINY) ** SHARPNESS
        whole = self.sum_of @ powered
        sums = whole ** (1 / SHARPNESS)
        total = self.run_of @ sums
        share = powered * (self.sum_of.T @ (sums / whole))  # seconds of the run that each amount contributes
        slope = (self.run_of @ self.sum_of @ self.terms.multiply(share[:, None]).tocsr()).multiply((1 / total)[:, None])
        return np.log(total), csr_array(slope)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How terms are fitted: their priors, and the standard deviation of one run's logarithm."""

    prior: Prior
    noise: float = 0.08

    def descend(
        self, held: Design, weights: Float64Array, theta: Float64Array | None = None, *, steps: int = STEPS
    ) -> Float64Array:
        """Finds the best terms by damped Gauss-Newton steps on reweighted errors."""
        start, deviation = (np.array(each) for each in zip(*map(self.prior, held.names), strict=True))
        theta = start if theta is None else theta
        found, slope = held.predicted(theta)
        loss, damping = self._loss(found - held.measured, weights, (theta - start) / deviation), 1e-3
        for _ in range(steps):
            error = found - held.measured
            weight = weights / self.noise**2 / np.sqrt(1 + (error / self.noise) ** 2)
            normal = (slope.T @ slope.multiply(weight[:, None])).toarray() + np.diag(1 / deviation**2)
            downhill = slope.T @ (weight * error) + (theta - start) / deviation**2
            tried = theta - np.linalg.solve(normal + damping * np.diag(np.diag(normal)), downhill)
            after, tilt = held.predicted(tried)
            worth = self._loss(after - held.measured, weights, (tried - start) / deviation)
            if not worth <= loss:
                damping *= 10
                if damping > 1e8:
                    break
                continue
            gained, theta, found, slope, loss, damping = loss - worth, tried, after, tilt, worth, damping / 3
            if gained < 1e-3:
                break
        return theta

    def _loss(self, error: Float64Array, weights: Float64Array, deviation: Float64Array) -> float:
        soft = weights * (np.sqrt(1 + (error / self.noise) ** 2) - 1)
        return float(soft.sum() + 0.5 * np.sum(deviation**2))

    def fitted(self, laws: Sequence[Law], measured: npt.ArrayLike) -> dict[str, float]:
        """Returns the terms that fit these runs best."""
        held = Design.of(laws, measured)
        theta = self.descend(held, np.ones(len(laws)))
        return {name: float(value) for name, value in zip(held.names, theta, strict=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Folds:
    """Fits that each leave out one group of runs, and their errors on that group."""

    terms: Mapping[str, dict[str, float]]  # by left-out group; ``none`` for the fit to all
    misses: Mapping[str, Float64Array]  # by kind of group: log(predicted / measured) of every run


def folds(fit: Fit, laws: Sequence[Law], measured: npt.ArrayLike, groups: Mapping[str, Sequence[str]]) -> Folds:
    """Fits to all runs, and then to all runs except one group, for each group in turn.

    Args:
        fit: Priors and noise.
        laws: Law of every run.
        measured: Measured value of every run.
        groups: Maps a kind of group (``device``, ``model``, …) to the group of every run.
    """
    held = Design.of(laws, measured)
    everything = fit.descend(held, np.ones(len(laws)))
    terms = {"none": _rounded(held.names, everything)}
    misses = {"none": held.predicted(everything)[0] - held.measured}
    for kind, names in groups.items():
        each = np.array(names)
        missed = np.empty(len(laws))
        for name in sorted(set(names)):
            out = each == name
            theta = fit.descend(held, (~out).astype(float), everything, steps=REFINED)
            missed[out] = (held.predicted(theta)[0] - held.measured)[out]
            terms[f"{kind}:{name}"] = _rounded(held.names, theta, everything)
        misses[kind] = missed
    return Folds(terms=terms, misses=misses)


def _rounded(names: Sequence[str], theta: Float64Array, base: Float64Array | float = 0.0) -> dict[str, float]:
    far = np.abs(theta - base) >= SAME
    return {name: round(float(v), 3) for name, v, kept in zip(names, theta, far, strict=True) if kept}
