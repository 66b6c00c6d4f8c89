"""P99 times of requests whose prompts differ in length; the lengths are lognormal with a given P50 and P99.

The times of requests vary for two independent reasons: the lengths of their prompts, and variation between equal
requests. For independent normal variables, the squares of the distances from P50 to P99 add up; here the variables are
logarithms:

    ln(P99 / P50) = sqrt(ln(t(P99 length) / t(P50 length))^2 + ln(P99 / P50 of equal requests)^2)

where t is the median time of requests with prompts of that length. The formula is exact if t is a power of the prompt's
length. The P50 times are those of requests whose prompt has the P50 length. Memory is that of a request whose prompt
has the P99 length.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.errors import SpecError
from chipwise.predict.cost.model import CostEstimate
from chipwise.predict.served.tails import TAILS


def check_prompts(p50: int, p99: int, field: str) -> None:
    """Checks the P50 and the P99 of prompt lengths.

    Raises:
        SpecError: The P99 is not above the P50.
    """
    if p99 <= p50:
        raise SpecError(f"the P99 of prompts must be above their P50 of {p50:,} tokens, not {p99:,}", field=field)


def factor(equal: Float64Array | float, longer: Float64Array | float) -> Float64Array:
    """The factor from the P99 time of equal requests to the P99 time of requests with different prompts.

    Args:
        equal: P99 / P50 of the times of equal requests, at least 1.
        longer: Median time with a prompt of the P99 length, divided by the median time with a prompt of the P50
            length; values below 1 count as 1.
    """
    log_equal, log_longer = np.log(np.maximum(equal, 1.0)), np.log(np.maximum(longer, 1.0))
    return np.asarray(np.exp(np.hypot(log_equal, log_longer) - log_equal))


def said(p50: int, p99: int) -> str:
    """One line on the distribution of prompt lengths for which the P99 times hold."""
    return f"P99s are for lognormal prompts of {p50:,} (P50) to {p99:,} tokens (P99); memory is for the P99 prompt"


def over_prompts(found: CostEstimate, longest: CostEstimate, *, p50: int, p99: int) -> CostEstimate:
    """The estimate for prompts of the P50 length, with P99 times over all lengths and memory for the P99 length.

    Args:
        found: The estimate of requests whose prompts have the P50 length.
        longest: The estimate of requests whose prompts have the P99 length.
        p50: P50 of prompt tokens.
        p99: P99 of prompt tokens.
    """
    metrics = dict(found.metrics)
    for name, median in TAILS.items():
        if name in metrics and median in metrics:
            tail, middle = metrics[name], metrics[median].value
            by = float(factor(tail.value / middle, longest.metrics[median].value / middle))
            low, high = (None if end is None else by * end for end in (tail.low, tail.high))
            metrics[name] = replace(tail, value=by * tail.value, low=low, high=high)
    return replace(
        found,
        metrics=metrics,
        peak_memory_bytes=longest.peak_memory_bytes,
        memory_bytes=longest.memory_bytes,
        does_not_fit=longest.does_not_fit,
        notes=(*found.notes, said(p50, p99)),
    )
