"""P99s over requests whose prompts differ in length: lognormal, through their P50 and P99.

The times of requests vary for two independent reasons: their prompts, and what varies between equal requests. In
logarithms the distances from P50 to P99 of independent normal variables add in squares:

    ln(P99 / P50) = sqrt(ln(t(P99 prompt) / t(P50 prompt))^2 + ln(P99 / P50 of equal requests)^2)

where t is the median time of requests with such prompts. It is exact if t is a power of the prompt's length. P50s are
those of the P50 prompt; memory is that of the P99 prompt.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.errors import SpecError
from chipwise.predict.cost.model import CostEstimate
from chipwise.predict.served.tails import TAILS


def check_prompts(p50: int, p99: int, field: str) -> None:
    """Checks the prompt lengths of a spread.

    Raises:
        SpecError: The P99 is not above the P50.
    """
    if p99 <= p50:
        raise SpecError(f"the P99 of prompts must be above their P50 of {p50:,} tokens, not {p99:,}", field=field)


def factor(equal: Float64Array | float, longer: Float64Array | float) -> Float64Array:
    """What multiplies the P99 of equal requests, so that it holds over the spread of prompts.

    Args:
        equal: P99 / P50 of equal requests, at least 1.
        longer: Median time of requests with the P99 prompt over that with the P50 prompt; below 1 counts as 1.
    """
    log_equal, log_longer = np.log(np.maximum(equal, 1.0)), np.log(np.maximum(longer, 1.0))
    return np.asarray(np.exp(np.hypot(log_equal, log_longer) - log_equal))


def said(p50: int, p99: int) -> str:
    """One line on the prompts over which P99s hold."""
    return f"P99s hold over prompts of {p50:,} (P50) to {p99:,} tokens (P99), lognormal; memory is that of the longer"


def over_prompts(found: CostEstimate, longest: CostEstimate, *, p50: int, p99: int) -> CostEstimate:
    """The estimate of requests with the P50 prompt, with P99s that hold over the spread of prompts.

    Args:
        found: The estimate of requests with the P50 prompt.
        longest: The estimate of requests with the P99 prompt.
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
