"""What samples say beyond a median: an interval for any percentile, and whether they come from two speeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LEAST_SHARE = 0.1  # of the samples in the smaller of two groups
LEAST_RATIO = 1.15  # of the two groups' medians
LEAST_SEPARATION = 4.0  # a normal distribution cut in half has 2.7, a uniform one 3.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PercentileInterval:
    """A percentile and the samples between which its true value lies; None where the samples do not bound it."""

    value: float
    low: float | None
    high: float | None
    confidence: float


def percentile_interval(samples: Sequence[float], share: float, *, confidence: float = 0.95) -> PercentileInterval:
    """The ``share`` percentile with a distribution-free interval between two order statistics.

    The true percentile lies above the k-th smallest of n samples with the probability that at least k of them fall
    below it, which is binomial. Each end may miss with half of what ``confidence`` leaves; where even the extreme
    sample misses oftener, that end is open: 200 samples do not bound a P99 from above, 368 do at 95 %.

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
        confidence=confidence,
    )


def _binomial_cdf(count: int, share: float) -> npt.NDArray[np.float64]:
    """P(X ≤ j) for j = 0 … count, X binomial."""
    steps = np.arange(1, count + 1)
    log_choose = np.concatenate([[0.0], np.cumsum(np.log(count - steps + 1) - np.log(steps))])
    j = np.arange(count + 1)
    mass = np.exp(log_choose + j * np.log(share) + (count - j) * np.log1p(-share))
    total: npt.NDArray[np.float64] = np.minimum(np.cumsum(mass), 1.0)
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoSpeeds:
    """Samples that fall into two groups: their medians, and the share of the slow one."""

    fast: float
    slow: float
    slow_share: float

    @property
    def ratio(self) -> float:
        """How much longer the slow group takes."""
        return self.slow / self.fast


def two_speeds(samples: Sequence[float]) -> TwoSpeeds | None:
    """The two groups that positive ``samples`` fall into, or None where they are one.

    The cut is the one with the most variance between groups (Otsu's), in logarithms; it counts where both groups
    hold a tenth of the samples, lie at least 15 % apart, and are separated (Ashman's D) by more than any cut through
    one bell or one plateau would be.

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
    return TwoSpeeds(
        fast=float(np.exp(np.median(fast))), slow=float(np.exp(np.median(slow))), slow_share=len(slow) / count
    )
