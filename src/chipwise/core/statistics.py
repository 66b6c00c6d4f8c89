"""Statistics that several packages use: intervals, rank correlation, quantiles and non-negative least squares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import Float64Array
from chipwise.core.extras import optional_imports

Z90 = 1.645  # half-width of a normal 90 % interval, in standard deviations
Z95 = NormalDist().inv_cdf(0.975)  # half-width of a normal 95 % interval, in standard deviations

LEAST_SHARE = 0.1  # least share of the samples in the smaller group
LEAST_RATIO = 1.15  # least ratio of the two groups' medians
LEAST_SEPARATION = 4.0  # least Ashman's D; the halves of a normal distribution have 2.7, of a uniform one 3.5


def normal_density(z: npt.ArrayLike) -> Float64Array:
    """Density of the standard normal distribution, elementwise."""
    return np.asarray(np.exp(-0.5 * np.square(z)) / math.sqrt(2 * math.pi))


def normal_cdf(z: npt.ArrayLike) -> Float64Array:
    """Probability that a standard normal variable is at most ``z``, elementwise.

    Raises:
        MissingExtra: scipy is not installed.
    """
    with optional_imports():
        from scipy.special import ndtr
    return np.asarray(ndtr(np.asarray(z, np.float64)))


def nnls(matrix: npt.ArrayLike, target: npt.ArrayLike) -> Float64Array:
    """Non-negative least squares: the x ≥ 0, (columns,), that minimises ‖matrix @ x − target‖.

    Columns may differ by orders of magnitude. With one or two columns, all active sets are tried; more columns need
    scipy.

    Raises:
        MissingExtra: scipy is not installed.

    References:
        Lawson and Hanson 1974, Solving Least Squares Problems, chapter 23 (the active-set method).
    """
    columns, wanted = np.asarray(matrix, np.float64), np.asarray(target, np.float64)
    scale = np.linalg.norm(columns, axis=0)
    scale[scale == 0] = 1.0
    if columns.shape[1] <= 2:
        return np.asarray(_nnls_of_few(columns / scale, wanted) / scale)
    with optional_imports():
        from scipy import optimize
    solution, _ = optimize.nnls(columns / scale, wanted, maxiter=100 * columns.shape[1])
    return np.asarray(solution / scale)


def _nnls_of_few(columns: Float64Array, target: Float64Array) -> Float64Array:
    """The best non-negative solution: it uses all columns, only one column, or no column."""
    count = columns.shape[1]
    best, least = np.zeros(count), float(target @ target)
    for chosen in (chosen for size in range(1, count + 1) for chosen in combinations(range(count), size)):
        found = np.zeros(count)
        found[list(chosen)] = np.linalg.lstsq(columns[:, chosen], target, rcond=None)[0]
        left = target - columns @ found
        if (found >= 0).all() and float(left @ left) < least:
            best, least = found, float(left @ left)
    return best


def kendall_tau(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Kendall's rank correlation (tau-b, which corrects for ties) of two columns; NaN if one column is constant.

    >>> round(kendall_tau([1.0, 2.0, 3.0], [1.0, 3.0, 2.0]), 3)
    0.333

    References:
        Kendall 1945, The treatment of ties in ranking problems, Biometrika 33:239.
    """
    return float(weighted_kendall_taus(first, second, np.ones((1, len(np.asarray(first)))))[0])


def weighted_kendall_taus(
    first: npt.ArrayLike, second: npt.ArrayLike, weights: Float64Array, *, pairs: npt.NDArray[np.bool_] | None = None
) -> Float64Array:
    """Kendall's tau-b of two columns for each weighting of the rows (bootstrap draw), (draws,); NaN if undefined.

    Args:
        first: One value per row, (n,).
        second: One value per row, (n,).
        weights: The weight of each row in each draw, (draws, n).
        pairs: Symmetric mask of the pairs of rows to compare, (n, n). Default: all.
    """
    x, y = np.asarray(first, np.float64), np.asarray(second, np.float64)
    a, b = np.sign(x[:, None] - x), np.sign(y[:, None] - y)
    counted = np.ones_like(a) if pairs is None else np.asarray(pairs, np.float64)
    products = (a * b * counted, a**2 * counted, b**2 * counted)
    agreement, untied_first, untied_second = (((weights @ matrix) * weights).sum(axis=1) for matrix in products)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(agreement / np.sqrt(untied_first * untied_second))


def weighted_quantile(values: npt.ArrayLike, weights: npt.ArrayLike, share: float) -> float:
    """The smallest value such that values up to it have at least ``share`` of the total weight.

    If ``share`` is above 1, the largest value.
    """
    ordered = np.asarray(values, np.float64)
    order = np.argsort(ordered)
    reached = np.cumsum(np.asarray(weights, np.float64)[order])
    place = int(np.searchsorted(reached, (share - 1e-12) * reached[-1]))  # rounding must not skip a value
    return float(ordered[order[min(place, len(order) - 1)]])


def conformal_half_width(misses: npt.ArrayLike, share: float = 0.9, *, groups: npt.ArrayLike | None = None) -> float:
    """Split-conformal half-width: the smallest half-width whose intervals cover ``share`` of the true values.

    As usual in split conformal prediction, ``share`` is multiplied by (n + 1) / n to allow for the unseen value. This
    makes the half-width slightly larger.

    Args:
        misses: True value minus prediction, (n,), in the unit of the half-width (often logarithms).
        share: Share of the true values that intervals should cover.
        groups: The group of each miss; all groups have the same total weight, however many misses they have.

    References:
        Vovk, Gammerman and Shafer 2005, Algorithmic Learning in a Random World; Lei et al. 2018, Distribution-free
        predictive inference for regression (split conformal).
    """
    sizes = np.abs(np.asarray(misses, np.float64))
    which = np.zeros(len(sizes), int) if groups is None else np.unique(groups, return_inverse=True)[1]
    return weighted_quantile(sizes, 1 / np.bincount(which)[which], share * (1 + 1 / len(sizes)))


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % confidence interval of a probability, given ``successes`` in ``trials`` trials.

    References:
        Wilson 1927, J. Am. Stat. Assoc. 22:209.
    """
    share, z2 = successes / trials, Z95**2
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z95 / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    return max(0.0, min(share, middle - half)), min(
        1.0, max(share, middle + half)
    )  # rounding must not exclude the share itself


class PercentileInterval(NamedTuple):
    """A percentile with its confidence interval. A bound is None if there are too few samples for it."""

    value: float
    low: float | None
    high: float | None


def percentile_interval(samples: Sequence[float], share: float, *, confidence: float = 0.95) -> PercentileInterval:
    """The ``share`` percentile with a distribution-free interval between two order statistics.

    The number of samples below the true percentile is binomial; if it is at least k, the percentile lies above the k-th
    smallest sample. Each bound may be wrong with probability (1 - ``confidence``) / 2. If even the smallest sample
    would be wrong more often as a lower bound, the lower bound is None; the same holds for the largest sample and the
    upper bound. At 95 % confidence, 200 samples do not bound a P99 from above, but 368 do.

    Raises:
        ValueError: There are no samples.

    References:
        David and Nagaraja 2003, Order Statistics, section 7.1.
    """
    if not len(samples):
        raise ValueError("no samples")
    ordered = np.sort(np.asarray(samples, np.float64))
    below = _binomial_cdf(len(ordered), share)  # P(at most j samples fall below), j = 0 … n
    miss = (1 - confidence) / 2
    # The (i+1)-th smallest is a lower end if P(at most i below) ≤ miss; an upper end if P(at least i+1 below) ≤ miss.
    lows = np.flatnonzero(below[:-1] <= miss)
    highs = np.flatnonzero(1 - below[:-1] <= miss)
    return PercentileInterval(
        value=float(np.quantile(ordered, share)),
        low=float(ordered[lows[-1]]) if len(lows) else None,
        high=float(ordered[highs[0]]) if len(highs) else None,
    )


def _binomial_cdf(count: int, share: float) -> Float64Array:
    """P(X ≤ j) for j = 0 … count, where X is binomial with ``count`` trials of probability ``share``."""
    steps = np.arange(1, count + 1)
    log_choose = np.concatenate([[0.0], np.cumsum(np.log(count - steps + 1) - np.log(steps))])
    j = np.arange(count + 1)
    mass = np.exp(log_choose + j * np.log(share) + (count - j) * np.log1p(-share))
    total: Float64Array = np.minimum(np.cumsum(mass), 1.0)
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoSpeeds:
    """The medians of a fast and of a slow group of samples."""

    fast: float
    slow: float

    @property
    def ratio(self) -> float:
        """The slow group's median divided by the fast group's."""
        return self.slow / self.fast


OWN_SHARE, OWN_BAND = 0.05, 1.15


def own_speed(seconds: Sequence[float]) -> float:
    """Typical time on an undisturbed machine: the median of the shortest times in ``seconds``.

    The shortest times are those up to 15 % above the 5th percentile. On an undisturbed machine, the result is nearly
    the median of all times. If other programs halve the machine's speed for parts of a second, the median time of the
    same work changes by 20 % from minute to minute. The result of this function then changes by only 2 %, provided that
    at least 5 % of the times were undisturbed.
    """
    found = np.asarray(seconds, np.float64)
    least = float(np.quantile(found, OWN_SHARE))
    return float(np.median(found[found <= OWN_BAND * least]))


def two_speeds(samples: Sequence[float]) -> TwoSpeeds | None:
    """Splits positive ``samples`` into a fast and a slow group; None if they form one group.

    The cut maximises the variance between the groups (Otsu), in logarithms. It is accepted if both groups have at least
    10 % of the samples, their medians differ by at least 15 %, and their separation (Ashman's D) is larger than that
    of the two halves of a normal or a uniform distribution.

    References:
        Otsu 1979, A threshold selection method from gray-level histograms; Ashman et al. 1994, Detecting bimodality
        in astronomical datasets, equation 1.
    """
    logs = np.sort(np.log(np.asarray(samples, np.float64)))
    count = len(logs)
    least = max(3, int(np.ceil(LEAST_SHARE * count)))
    if count < 2 * least:
        return None
    sums = np.cumsum(logs)
    left = np.arange(1, count)
    means_left, means_right = sums[:-1] / left, (sums[-1] - sums[:-1]) / (count - left)
    between = left * (count - left) * (means_right - means_left) ** 2
    between[: least - 1] = between[count - least :] = -1.0
    cut = int(np.argmax(between)) + 1
    slow, fast = logs[cut:], logs[:cut]
    apart = float(np.median(slow) - np.median(fast))
    width = float(np.sqrt((slow.var() + fast.var()) / 2))
    if apart < np.log(LEAST_RATIO) or apart < LEAST_SEPARATION * width:
        return None
    return TwoSpeeds(fast=float(np.exp(np.median(fast))), slow=float(np.exp(np.median(slow))))
