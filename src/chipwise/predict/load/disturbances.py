"""Disturbances from outside the engine: other workloads on the same machine (neighbours), and the network to clients.

Neighbours slow down all steps during a share of the time. The slow periods are assumed to be much longer than a
request, so each request is served either at the usual speed or at the slow speed. The times of all requests are then a
mixture of two replays, one of which has steps ``slow_factor`` times as long.

The network delays each request by a random time, which is the sum for both directions. The delay does not depend on the
engine, and is lognormal with the given P50 and P99. It adds to the time to first token and to the end-to-end time.
Later tokens of a stream arrive at the pace at which they were sent.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeVar

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.errors import SpecError, short
from chipwise.predict.load.load import MOST_WAIT_S

DRAWS = 50_000  # least number of delays per replay
POINTS = 4_001  # tabulated quantiles of the normal distribution
Z99 = NormalDist().inv_cdf(0.99)
Replay = TypeVar("Replay")
Weighted = tuple[Float64Array, Float64Array]  # values and their weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbances:
    """Disturbances by neighbours and by the network, as described at the top of this module. Default: none.

    Attributes:
        slow_share: Share of the time with slow steps.
        slow_factor: Factor on step times in that share.
        network_p50_s: Median delay of a request by the network, there and back.
        network_p99_s: P99 of that delay; None for a constant delay of ``network_p50_s``.

    Raises:
        SpecError: A number is out of range, or one of two numbers that belong together is missing.
    """

    slow_share: float = 0.0
    slow_factor: float = 1.0
    network_p50_s: float = 0.0
    network_p99_s: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.slow_share < 1:
            raise SpecError(f"must be from 0 to below 100 %, not {short(self.slow_share)}", field="slow_share")
        if not 1 <= self.slow_factor <= 100:
            raise SpecError(f"must be from 1 to 100, not {short(self.slow_factor)}", field="slow_factor")
        if self.slow_share and self.slow_factor == 1:
            raise SpecError("needs slow_factor, the factor on the time of slow steps, such as 1.5", field="slow_share")
        if self.slow_factor > 1 and not self.slow_share:
            raise SpecError("needs slow_share, the share of the time with slow steps, such as 5 %", field="slow_factor")
        for name in ("network_p50_s", "network_p99_s"):
            if not 0 <= (getattr(self, name) or 0.0) <= MOST_WAIT_S:
                raise SpecError(f"must be from 0 to {MOST_WAIT_S:,.0f} s, not {getattr(self, name):g} s", field=name)
        if self.network_p99_s is not None and not self.network_p50_s:
            raise SpecError("needs network_p50, the median delay", field="network_p99")
        if self.network_p99_s is not None and self.network_p99_s < self.network_p50_s:
            raise SpecError(
                f"must be at least the P50 of {self.network_p50_s:g} s, not {self.network_p99_s:g} s",
                field="network_p99",
            )

    @property
    def speed(self) -> float:
        """Mean speed over a long time, relative to the speed without neighbours."""
        return 1 - self.slow_share + self.slow_share / self.slow_factor

    def replays(self, replayed: Callable[[float], Replay]) -> list[Replay]:
        """The replay at the usual speed and, if there are neighbours, another replay at the slow speed.

        Args:
            replayed: A function that replays the load with all step times multiplied by its argument.
        """
        return [replayed(factor) for factor in (1.0, self.slow_factor)[: 1 + bool(self.slow_share)]]

    def delayed(self, seconds: Float64Array, weights: Float64Array) -> Weighted:
        """Adds the network's delays to times of requests. Each time is repeated with several equally likely delays.

        Args:
            seconds: Times without the network, (n,).
            weights: Weights of these times, (n,).
        """
        if not self.network_p50_s or not len(seconds):
            return seconds, weights
        times = -(-DRAWS // len(seconds))
        count = times * len(seconds)
        order = np.random.default_rng(count).permutation(count)  # the quantiles are evenly spaced in random order
        sigma = math.log((self.network_p99_s or self.network_p50_s) / self.network_p50_s) / Z99
        shares, normal = _normal_quantiles()
        delays = self.network_p50_s * np.exp(sigma * np.interp((order + 0.5) / count, shares, normal))
        return np.tile(seconds, times) + delays, np.tile(weights, times)

    def describe(self) -> str:
        """Text such as ``steps 1.5 times as long in 5 % of the time, network delay P50 20 ms and P99 120 ms``."""
        parts = []
        if self.slow_share:
            parts.append(f"steps {self.slow_factor:g} times as long in {100 * self.slow_share:.4g} % of the time")
        if self.network_p50_s:
            p99_s = self.network_p99_s or self.network_p50_s
            parts.append(f"network delay P50 {1e3 * self.network_p50_s:.4g} ms and P99 {1e3 * p99_s:.4g} ms")
        return ", ".join(parts)


UNDISTURBED = Disturbances()


@functools.cache
def _normal_quantiles() -> Weighted:
    """Cumulative probabilities and their quantiles under the standard normal distribution; (``POINTS``,) each."""
    normal = np.linspace(-4.5, 4.5, POINTS)
    return np.array([NormalDist().cdf(z) for z in normal]), normal


def mixed(parts: Sequence[Weighted]) -> Weighted:
    """Concatenates the values and the weights of all ``parts``."""
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def weighted_quantiles(values: Float64Array, weights: Float64Array, shares: Sequence[float]) -> Float64Array:
    """Quantiles of weighted values.

    For each share, the quantile is the smallest value v for which the values up to v have at least this share of the
    total weight.
    """
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    place = np.searchsorted(reached, np.array(shares) * reached[-1] * (1 - 1e-12), side="left")
    return np.asarray(values[order][place])
