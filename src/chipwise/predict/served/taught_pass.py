"""Seconds of a pass on a machine with measurements: formulas that both teaching and prediction use.

``chipwise teach`` measures models on a machine and stores a profile. The prediction from the data sheet is a sum over
groups of operators (``TERMS``). The profile corrects it by a factor for each group, a common factor, and a smooth
factor that depends on features of the pass (``FIGURES``):

    ln t = ln Σ units_g · z_g · exp(u_g)  +  c  +  Σ labels  +  r(figures)

The logarithms u, c, labels and r have normal priors with mean 0; if all are 0, the prediction is that of the data
sheet. A few extra groups (``EXTRA``) represent costs that the data sheet may omit: per byte, per operation, per kernel
and per pass. They start at ``EXTRA_SHARE`` of a typical pass and may grow to the whole pass. The smooth factor r is a
Gaussian process that is represented by ``points``, a few of the measured passes. Far from these points, its full
variance counts as uncertainty.

References:
    Rasmussen and Williams 2006, Gaussian Processes for Machine Learning, sections 2.7 (a process with basis functions)
    and 8.3.4 (subset of regressors, here with the missing variance added).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.hardware.taught import Teaching

GROUPS = (
    "products of few rows",
    "products of many rows",
    "head",
    "attention of few rows",
    "attention of many rows",
    "experts of few rows",
    "experts of many rows",
    "communication",
    "streams",
    "launches",
    "host",
)
EXTRA = ("bytes", "arithmetic of few rows", "arithmetic of many rows", "kernels", "passes")
TERMS = (*GROUPS, *EXTRA)
EXTRA_SHARE = 0.1
FIGURES = ("log_flops", "log_bytes", "log_kernels", "log_rows", "attention_share", "head_share")
SPREADS = np.array([1.5, 1.5, 0.6, 1.5, 0.25, 0.25])
"""Length scale of each feature in ``FIGURES``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSums:
    """What a profile needs to know about passes; arrays are (passes, …).

    Attributes:
        terms: Seconds of each group in ``TERMS`` according to the data sheet. ``EXTRA`` groups are in seconds or
            counts.
        figures: ``FIGURES`` of each pass.
        labels: Names of the factors that apply to a whole pass, the same for all passes.
    """

    terms: Float64Array
    figures: Float64Array
    labels: tuple[str, ...]

    @property
    def sheet_s(self) -> Float64Array:
        """Seconds predicted from the data sheet, (passes,)."""
        total: Float64Array = self.terms[:, : len(GROUPS)].sum(axis=1)
        return total


def basis(figures: Float64Array, points: Float64Array, *, amplitude: float, reach: float) -> Float64Array:
    """Basis functions of the smooth factor, (passes, points). Their weights are independent standard normal variables.

    Each pass has a row of the result. The square of ``amplitude``, minus the row's squared length, is the variance of
    the smooth factor that the points do not explain.
    """
    if not len(points):
        return np.zeros((len(figures), 0))
    inverse = np.linalg.inv(np.linalg.cholesky(kernel(points, points, reach) + 1e-6 * np.eye(len(points))))
    found: Float64Array = amplitude * kernel(figures, points, reach) @ inverse.T
    return found


def kernel(first: Float64Array, second: Float64Array, reach: float) -> Float64Array:
    """Correlation of the smooth factor between two sets of passes, (n, m)."""
    apart = (first[:, None, :] - second[None, :, :]) / SPREADS
    result: Float64Array = np.exp(-0.5 * (apart**2).sum(axis=-1) / reach**2)
    return result


def label_names(phase: str, runtime: str, weights: str, variant: str) -> tuple[str, ...]:
    """Labels of the factors that apply to a whole pass.

    They are the phase, the runtime, the weight format and the variant; the last three also in combination with the
    phase.
    """
    about = [f"runtime {runtime}", f"weights {weights}", *([f"variant {variant}"] if variant else [])]
    return (phase, *about, *(f"{phase}, {name}" for name in about))


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimesTaught:
    """The prediction of a profile for several passes; arrays are (passes,) unless stated otherwise."""

    seconds: Float64Array
    slopes: Float64Array  # (passes, logarithms): derivative of ln(seconds) with respect to the learnt logarithms
    own: Float64Array  # (passes,): variance of ln(seconds) that does not depend on the learnt logarithms
    factors: Float64Array  # (passes, terms): factor of each group of ``GROUPS``; seconds per unit of ``EXTRA``


def taught_seconds(teaching: Teaching, passes: PassSums) -> PassTimesTaught:
    """Seconds of passes on the machine of ``teaching``, which must have at least one row."""
    known = _arrays(teaching)
    places = [teaching.labels.index(name) for name in passes.labels if name in teaching.labels]
    unseen = len(passes.labels) - len(places)
    raised = passes.terms * known.scaled
    total = raised.sum(axis=1)
    smooth = basis(passes.figures, known.points, amplitude=teaching.amplitude, reach=teaching.reach)
    count = len(passes.terms)
    shifts = np.zeros((count, len(teaching.labels)))
    shifts[:, places] = 1.0
    rows = np.hstack([np.ones((count, 1)), raised / total[:, None], shifts, smooth])
    first = 1 + len(teaching.terms)
    shift = known.mean[0] + rows[:, first:] @ known.mean[first:]
    own = np.maximum(teaching.amplitude**2 - (smooth**2).sum(axis=1), 0.0) + unseen * teaching.label_sd**2
    factors = known.scaled * np.exp(shift)[:, None]
    return PassTimesTaught(seconds=total * np.exp(shift), slopes=rows, own=own, factors=factors)


def deviation(teaching: Teaching, shares: Sequence[tuple[Float64Array, PassTimesTaught]]) -> Float64Array:
    """Standard deviation of ln(measured / predicted) for sums of passes, including the noise of a measurement.

    Args:
        teaching: The profile.
        shares: The passes that are summed, each with its share of the sum, (n,).
    """
    known = _arrays(teaching)
    slopes = np.sum([share[:, None] * found.slopes for share, found in shares], axis=0)
    own = np.sum([share * found.own for share, found in shares], axis=0)
    variance = ((slopes @ known.covariance) * slopes).sum(axis=1) + own + teaching.noise**2
    result: Float64Array = teaching.widen * np.sqrt(variance)
    return result


@dataclass(frozen=True, slots=True)
class _Arrays:
    scaled: Float64Array  # units times the factors of the terms
    mean: Float64Array
    covariance: Float64Array
    points: Float64Array


@functools.lru_cache(maxsize=32)
def _arrays(teaching: Teaching) -> _Arrays:
    mean = np.asarray(teaching.mean)
    scaled = np.asarray(teaching.units) * np.exp(mean[1 : 1 + len(teaching.terms)])
    points = np.asarray(teaching.points, np.float64).reshape(-1, len(FIGURES))
    return _Arrays(scaled, mean, np.asarray(teaching.covariance), points)


def sequence(values: Float64Array) -> tuple[float, ...]:
    """Converts an array to the form in which a profile stores it."""
    return tuple(float(f"{value:.9g}") for value in values)


def matrix(values: Float64Array | Sequence[Float64Array]) -> tuple[tuple[float, ...], ...]:
    """Converts a matrix to the form in which a profile stores it, row by row."""
    return tuple(sequence(row) for row in values)
