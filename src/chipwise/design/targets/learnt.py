"""Uses measurements on the device to correct the metrics that its data sheet predicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from chipwise.core.statistics import Z90
from chipwise.design.targets.chance import Bounds, spread_of, value_of

UNKNOWN_SPREAD = 0.6  # standard deviation of ln(measured / predicted) without a validated interval
COMMON = 0.8  # share of the prior variance that all designs on a device have in common


class Learnt:
    """Correction factors on predictions, with intervals, learnt from measurements.

    The prior variance of ln(measured / predicted) is s², where s follows from the prediction's interval. Most of s² is
    an error that all designs on the device have in common. Given measurements, this common error has the posterior of a
    normal mean. The variance between designs is estimated from the residuals; its prior counts as two measurements.

    Args:
        pairs: Maps each metric to its pairs of a prediction and a measurement, one pair for each measured design.
    """

    def __init__(self, pairs: Mapping[str, Sequence[tuple[Bounds, float]]]) -> None:
        self._posterior = {metric: _posterior(each) for metric, each in pairs.items() if each}

    def knows(self, metric: str) -> bool:
        """Whether there is a correction for a metric, that is, whether it was measured."""
        return metric in self._posterior

    def factor(self, metric: str) -> float:
        """Factor by which predictions of a metric are multiplied; 1 if it was not measured."""
        return math.exp(self._posterior[metric][0]) if metric in self._posterior else 1.0

    def corrected(self, metric: str, bounds: Bounds) -> Bounds:
        """A prediction after correction; unchanged if the metric was not measured."""
        value = bounds[0]
        if metric not in self._posterior or value is None:
            return bounds
        shift, spread = self._posterior[metric]
        middle, half = value * math.exp(shift), math.exp(Z90 * spread)
        return (middle, middle / half, middle * half)


def _posterior(pairs: Sequence[tuple[Bounds, float]]) -> tuple[float, float]:
    """Posterior mean and standard deviation of ln(measured / predicted) for the next design."""
    logs, spreads = [], []
    for bounds, measured in pairs:
        logs.append(math.log(measured / value_of(bounds)))
        spreads.append(spread_of(bounds) or UNKNOWN_SPREAD)
    prior = sum(spread**2 for spread in spreads) / len(spreads)
    shared, own = COMMON * prior, (1 - COMMON) * prior
    n = len(logs)
    mean = sum(logs) / n
    left = sum((each - mean) ** 2 for each in logs)
    own = (2 * own + left) / (2 + max(n - 1, 0))
    weight = shared / (shared + own / n)
    return weight * mean, math.sqrt(own + shared * (1 - weight))
