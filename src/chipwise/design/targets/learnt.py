"""Corrects a data sheet's predictions by measurements on the device, metric by metric."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from chipwise.core.statistics import Z90
from chipwise.design.targets.chance import Bounds, spread_of, value_of

UNKNOWN_SPREAD = 0.6  # standard deviation of ln(measured / predicted) without a validated interval
COMMON = 0.8  # share of the prior variance that is common to all designs on a device


class Learnt:
    """Correction factors on predictions, and their intervals, from measurements.

    The prior variance of ln(measured / predicted) is that of the prediction's interval, s². Most of it is common to all
    designs on the device. n measurements with mean m give the common part the posterior of a normal mean; the variance
    between designs is estimated from the residuals, with its prior counting as two measurements.

    Args:
        pairs: By metric, predictions and measurements of the same designs.
    """

    def __init__(self, pairs: Mapping[str, Sequence[tuple[Bounds, float]]]) -> None:
        self._posterior = {metric: _posterior(each) for metric, each in pairs.items() if each}

    def knows(self, metric: str) -> bool:
        """Whether a metric was measured."""
        return metric in self._posterior

    def factor(self, metric: str) -> float:
        """Factor on predictions of a metric."""
        return math.exp(self._posterior[metric][0]) if metric in self._posterior else 1.0

    def corrected(self, metric: str, bounds: Bounds) -> Bounds:
        """A corrected prediction; unchanged if the metric was not measured."""
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
