"""Finds the cheapest fleet of separate pools for prefill and decode.

Both pools use the same runtime and weight format, so that KV caches can be transferred and answers do not depend on the
pool. Pairs of arrangements are evaluated in order of a lower bound on their fleets' price. The search stops when this
bound exceeds the price of the cheapest fleet found so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chipwise.design.fleet.evaluating import Candidate
from chipwise.design.fleet.holding import Fleet, Holding, Times, fewest_of, price_order

MOST_PAIRS = 400  # most pairs of arrangements that are evaluated


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two arrangements, and a lower bound on the price of a fleet that uses both."""

    first: Candidate
    second: Candidate
    bound: float = 0.0

    @classmethod
    def of(cls, fleet: Fleet) -> Pair:
        """The pair of arrangements that a fleet of two pools uses."""
        first, second = fleet.both
        return cls(first=first, second=second)


class TwoPools:
    """Searches for the cheapest fleet of two pools.

    Args:
        holding: Decides whether fleets meet the limits.
        candidates: Arrangements for either pool; those with unknown prices are ignored.
        limits: Limits on times.
        z: The limits must be met with step times ``z`` standard deviations above the prediction. Default: the
            quantile at the question's confidence.
        on_progress: Called with the number of evaluated pairs and of all pairs.
    """

    def __init__(
        self,
        holding: Holding,
        candidates: Sequence[Candidate],
        limits: Times,
        *,
        z: float | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.holding, self.limits, self.on_progress = holding, limits, on_progress
        self.candidates = [each for each in candidates if each.usd_per_s is not None]
        self.z = holding.z if z is None else z

    def found(self, below: float = math.inf) -> Fleet | None:
        """The cheapest fleet that meets the limits and costs less than ``below`` dollars per second, or None."""
        pairs = self.pairs(below)[:MOST_PAIRS]
        best: Fleet | None = None
        for number, pair in enumerate(pairs):
            if pair.bound >= below:
                break
            if self.on_progress is not None:
                self.on_progress(number, len(pairs))
            if fleet := self.cheapest(pair, below):
                best, below = fleet, price_order(fleet)
        return best

    # finding the best of all pairs

    def pairs(self, below: float = math.inf) -> list[Pair]:
        """The pairs whose lower bound on the price is less than ``below``, lowest bound first."""
        found = []
        for first in self.candidates:
            for second in self.candidates:
                bound = self.bound(first, second)
                if bound < below:
                    found.append(Pair(first=first, second=second, bound=bound))
        return sorted(found, key=lambda each: each.bound)

    def bound(self, first: Candidate, second: Candidate) -> float:
        """Lower bound on a fleet's dollars per second; infinite if these arrangements cannot form a fleet."""
        here, there = first.arrangement, second.arrangement
        if here.weights != there.weights or here.runtime != there.runtime:
            return math.inf
        prices = first.usd_per_s or 0.0, second.usd_per_s or 0.0
        served = self.holding.evaluator
        if here.speculation is not None or first.reading is None or second.writing is None:
            return math.inf
        if not served.question.link_bytes_per_s and not first.device.links:
            return math.inf
        return prices[0] * self._least_firsts(first) + prices[1] * self._least_seconds(second)

    def _least(self, per_s: float) -> int:
        """Fewest replicas that can serve the arrival rate, if one serves ``per_s`` requests per second."""
        return max(1, math.ceil(self.holding.evaluator.rate_per_s / per_s - 1e-9))

    # finding the best fleet of one pair

    def cheapest(self, pair: Pair, below: float = math.inf) -> Fleet | None:
        """The cheapest fleet of a pair that meets the limits for less than ``below`` dollars per second, or None."""
        if not self._can(pair):
            return None
        first_usd, second_usd = pair.first.usd_per_s or 0.0, pair.second.usd_per_s or 0.0
        best: Fleet | None = None
        ends, least = self._ends(pair, below), self._least_seconds(pair.second)
        for count in range(ends[0], ends[1] + 1):
            limit = below if best is None else price_order(best)
            left = limit - count * first_usd
            if least * second_usd >= left:
                break
            seconds = self.fewest_seconds(pair, count, most=self._most_seconds(pair, count, least, left))
            if seconds is None:
                continue
            best = self._fleet(pair, count, seconds)
            if seconds == least:
                break  # a larger first pool would not make the second one smaller
        return best

    def _fleet(self, pair: Pair, count: int, seconds: int) -> Fleet:
        return Fleet(candidate=pair.first, replicas=count, kind="apart", second=pair.second, seconds=seconds)

    def _can(self, pair: Pair) -> bool:
        """Whether a single request, without any other load, could meet the limits in both pools."""
        able = self.holding.can
        return able(pair.first, self.z, self.limits, writes=False) and able(
            pair.second, self.z, self.limits, reads=False
        )

    def _least_firsts(self, first: Candidate) -> int:
        return self._least(first.per_s(first.reading, self.z))

    def _least_seconds(self, second: Candidate) -> int:
        return self._least(second.per_s(second.writing, self.z))

    def _ends(self, pair: Pair, below: float) -> tuple[int, int]:
        """The smallest and the largest number of replicas to try for the first pool."""
        most = self.holding.most_replicas(pair.first)
        least = self._least_firsts(pair.first)
        firsts = {name: value for name, value in self.limits.items() if _of_reading(name)}
        if not firsts:
            return least, most
        seconds = self._least_seconds(pair.second)  # not needed for TTFT
        if math.isfinite(below) and pair.first.usd_per_s:
            most = min(most, int(below / pair.first.usd_per_s))
        fewest = fewest_of(
            lambda count: self.holding.holds(self._fleet(pair, count, seconds), self.z, firsts), least=least, most=most
        )
        return (1, 0) if fewest is None else (fewest, most)

    def _most_seconds(self, pair: Pair, count: int, least: int, left: float) -> int:
        """Largest second pool, in replicas, that the budget ``left`` and the limits on devices and power allow."""
        most = self.holding.most_replicas(pair.second)
        second_usd = pair.second.usd_per_s or 0.0
        if math.isfinite(left) and second_usd:
            most = min(most, math.ceil(left / second_usd - 1e-9) - 1)
        while most >= least and not self.holding.allowed(self._fleet(pair, count, most)):
            most -= 1
        return most

    def fewest_seconds(self, pair: Pair, count: int, *, most: int) -> int | None:
        """The fewest replicas of the second pool that meet the limits together with ``count`` replicas of the first."""
        return fewest_of(
            lambda seconds: self.holding.holds(self._fleet(pair, count, seconds), self.z, self.limits),
            least=self._least_seconds(pair.second), most=most,
        )  # fmt: skip


def _of_reading(name: str) -> bool:
    """Whether a metric depends on prefill only."""
    return name.rpartition(":")[2].split("_")[0] in ("ttft", "queue")
