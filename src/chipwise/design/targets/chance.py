"""Probability that predicted values meet limits; a value with a 90 % interval is taken as lognormally distributed.

A measured value either meets a limit or does not. For a prediction without a validated interval, the probability is
unknown, and only the predicted value is compared with the limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist

from chipwise.core.statistics import Z90
from chipwise.design.limits import Constraint

Bounds = Sequence[float | None]  # a value and its 90 % interval; bounds are None if there is no interval


def value_of(bounds: Bounds) -> float:
    """The predicted value, without its bounds."""
    value = bounds[0]
    assert value is not None  # a prediction has a value
    return value


def spread_of(bounds: Bounds) -> float | None:
    """Standard deviation of a prediction's logarithm; None if there is no interval."""
    value, low, high = bounds
    if low is None or high is None or value is None or low <= 0:
        return None
    return math.log(high / low) / (2 * Z90)


def chance(limit: Constraint, bounds: Bounds) -> float | None:
    """Probability that a predicted quantity meets ``limit``; None if the prediction has no interval.

    The distribution's median is the geometric mean of the interval's ends.
    """
    value, low, high = bounds
    spread = spread_of(bounds)
    if spread is None or low is None or high is None or value is None:
        return None
    if spread == 0:
        return 1.0 if limit.holds(value) else 0.0
    below = NormalDist().cdf((math.log(limit.limit) - 0.5 * math.log(low * high)) / spread)
    return below if limit.op == "<=" else 1.0 - below


def holds(limit: Constraint, bounds: Bounds, confidence: float) -> bool:
    """Whether a prediction meets a limit with probability ``confidence``; without an interval, the value decides."""
    likely = chance(limit, bounds)
    if likely is None:
        return limit.holds(value_of(bounds))
    return likely >= confidence


def kept(
    limits: Iterable[Constraint], predicted: Mapping[str, Bounds], measured: Mapping[str, float], confidence: float
) -> bool:
    """Whether all hard limits are met.

    A measured value must meet its limit; a value that is only predicted must meet it with probability ``confidence``.
    """
    for limit in limits:
        if not limit.hard:
            continue
        if limit.metric in measured:
            if not limit.holds(measured[limit.metric]):
                return False
        elif limit.metric in predicted and not holds(limit, predicted[limit.metric], confidence):
            return False
    return True


def chances_of(limits: Iterable[Constraint], predicted: Mapping[str, Bounds]) -> dict[str, float | None]:
    """Maps each metric to the probability that its limit is met; None if unknown.

    If a metric has several limits, the lowest of their probabilities is used.
    """
    found: dict[str, float | None] = {}
    for limit in limits:
        if limit.metric in predicted:
            likely, before = chance(limit, predicted[limit.metric]), found.get(limit.metric, 1.0)
            found[limit.metric] = None if likely is None or before is None else min(before, likely)
    return found


def margin(spread: float, confidence: float) -> float:
    """Factor by which a prediction must stay within a limit so that the limit is met with ``confidence``."""
    return math.exp(NormalDist().inv_cdf(confidence) * spread)


def values_of(predicted: Mapping[str, Bounds]) -> dict[str, float]:
    """The predicted values, without their intervals."""
    return {metric: float(bounds[0]) for metric, bounds in predicted.items() if bounds[0] is not None}


def tightened(limits: Iterable[Constraint], spreads: Mapping[str, float], confidence: float) -> tuple[Constraint, ...]:
    """Tightens hard limits so that predictions within the new limits meet the old ones with ``confidence``."""
    found = []
    for limit in limits:
        spread = spreads.get(limit.metric)
        if limit.hard and spread:
            factor = margin(spread, confidence)
            value = limit.limit / factor if limit.op == "<=" else limit.limit * factor
            text = f"{limit.text} with {100 * confidence:.0f} % confidence (predicted {limit.op} {limit.show(value)})"
            limit = replace(limit, limit=value, text=text, margin=factor)
        found.append(limit)
    return tuple(found)
