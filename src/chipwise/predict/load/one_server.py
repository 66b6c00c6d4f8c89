"""Requests per second that one server answers in time, with random arrivals and a queue."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ARRIVALS = 20_000


def rate_within(service_s: Sequence[float], limit_s: float, *, seed: int = 0) -> float:
    """Most requests a second for which 99 of 100 are answered within ``limit_s``, waiting included.

    One server, first come first served, Poisson arrivals; service times are drawn from those measured. 0 where even a
    request that does not wait takes longer.

    References:
        Waiting times by recursion: Lindley 1952, The theory of queues with a single server.
    """
    random = np.random.default_rng(seed)
    service = random.choice(np.asarray(service_s), ARRIVALS)
    gaps = random.exponential(1.0, ARRIVALS)

    def p99(rate: float) -> float:
        steps = np.concatenate(([0.0], service[:-1] - gaps[1:] / rate)).cumsum()
        waited = steps - np.minimum.accumulate(steps)
        return float(np.quantile(waited + service, 0.99))

    if np.quantile(service, 0.99) > limit_s:
        return 0.0
    low, high = 0.0, 1 / float(service.mean())
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if p99(middle) <= limit_s else (low, middle)
    return low
