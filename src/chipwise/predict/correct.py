"""What was measured corrects what is predicted: one shrunken factor per metric, with an interval.

A profile is made of single kernels; whole models on the same day are a few percent off, mostly all alike. The logarithm
of measured over predicted is averaged over the models measured so far, shrunk towards no correction as if ``PRIOR``
models had been measured that needed none, and its spread gives the interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from chipwise.core.statistics import Z90

PRIOR = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Factor on a prediction, and the relative half-width (in logarithms) of its 90 % interval."""

    factor: float = 1.0
    spread: float

    def interval(self, predicted: float) -> tuple[float, float, float]:
        """The corrected value with the bounds of its 90 % interval."""
        value = predicted * self.factor
        return value, value * math.exp(-self.spread), value * math.exp(self.spread)


def correction(pairs: Iterable[tuple[float, float]], *, error: float) -> Correction:
    """The correction that ``pairs`` of (predicted, measured) ask for.

    Args:
        pairs: Positive values of the same metric, the prediction uncorrected.
        error: Relative error (standard deviation in logarithms) believed before anything was measured.
    """
    logs = [math.log(measured / predicted) for predicted, measured in pairs if predicted > 0 and measured > 0]
    mean = sum(logs) / (len(logs) + PRIOR)
    # Believed variance counts as PRIOR + 1 observations, so that two lucky measurements do not close the interval.
    weight = PRIOR + 1.0
    variance = (weight * error**2 + sum((item - mean) ** 2 for item in logs)) / (weight + len(logs))
    return Correction(factor=math.exp(mean), spread=Z90 * math.sqrt(variance))
