"""Finds the cheapest fleet of separate pools for prefill and decode.

Both pools run the same runtime and weight format, so that caches can be transferred and answers are the same. Pairs of
arrangements are evaluated in the order of a lower bound on their price, until the bound exceeds the cheapest fleet
found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chipwise.design.fleet.evaluating import Candidate
from chipwise.design.fleet.holding import Fleet, Holding, Times, fewest_of, price_order

MOST_PAIRS = 400  # most pairs that are evaluated


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two arrangements, and a lower bound on the price of a fleet of both."""

    first: Candidate
    second: Candidate
    bound: float = 0.0

    @classmethod
    def of(cls, fleet: Fleet) -> Pair:
        """The arrangements of a fleet of two pools."""
        first, second = fleet.both
        return cls(first=first, second=second)


class TwoPools:
    """The search for one kind of fleet.

    Args:
        holding: Decides whether fleets keep the limits.
        candidates: Arrangements of each pool; those of unknown price are left out.
        limits: Limits on times.
        z: Deviation of the step times at which limits must hold. Default: that of the question's confidence.
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
        """The cheapest fleet within the limits for less than ``below`` dollars per second; None if there is none."""
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

    # pairs and what they cost at least

    def pairs(self, below: float = math.inf) -> list[Pair]:
        """The pairs that may cost less than ``below``, cheapest bound first."""
        found = []
        for first in self.candidates:
            for second in self.candidates:
                bound = self.bound(first, second)
                if bound < below:
                    found.append(Pair(first=first, second=second, bound=bound))
        return sorted(found, key=lambda each: each.bound)

    def bound(self, first: Candidate, second: Candidate) -> float:
        """Lower bound on the price of a fleet of both, in dollars per second; infinite if no fleet is possible."""
        here, there = first.arrangement, second.arrangement
        if here.weights != there.weights or here.runtime != there.runtime:
            return math.inf
        prices = first.usd_per_s or 0.0, second.usd_per_s or 0.0
        served = self.holding.evaluator
        if here.speculation is not None or first.reading is None or second.writing is None:
            return math.inf
        if not served.question.link_bytes_per_s and not first.device.links:
            return math.inf
        return prices[0] * self._least(served.reading_per_s(first, self.z)) + prices[1] * self._least(
            served.writing_per_s(second, self.z)
        )

    def _least(self, per_s: float) -> int:
        """Least number of replicas, each serving ``per_s`` requests per second, that cover the arrival rate."""
        return max(1, math.ceil(self.holding.evaluator.rate_per_s / per_s - 1e-9))

    # one pair

    def cheapest(self, pair: Pair, below: float = math.inf) -> Fleet | None:
        """The cheapest fleet of a pair that keeps the limits and costs less than ``below``; None if none does."""
        if not self._can(pair):
            return None
        first_usd, second_usd = pair.first.usd_per_s or 0.0, pair.second.usd_per_s or 0.0
        best: Fleet | None = None
        ends, least = self._ends(pair, below), self._least_seconds(pair)
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
                break  # a larger first pool cannot make the second smaller
        return best

    def _fleet(self, pair: Pair, count: int, seconds: int) -> Fleet:
        return Fleet(candidate=pair.first, replicas=count, kind="apart", second=pair.second, seconds=seconds)

    def _can(self, pair: Pair) -> bool:
        """Whether single requests meet the limits."""
        able = self.holding.can
        return able(pair.first, self.z, self.limits, writes=False) and able(
            pair.second, self.z, self.limits, reads=False
        )

    def _least_seconds(self, pair: Pair) -> int:
        return self._least(self.holding.evaluator.writing_per_s(pair.second, self.z))

    def _ends(self, pair: Pair, below: float) -> tuple[int, int]:
        """The range of replicas to try for the first pool."""
        most = self.holding.most_replicas(pair.first)
        least = self._least(self.holding.evaluator.reading_per_s(pair.first, self.z))
        firsts = {name: value for name, value in self.limits.items() if _of_reading(name)}
        if not firsts:
            return least, most
        seconds = self._least_seconds(pair)  # not needed for TTFT
        if math.isfinite(below) and pair.first.usd_per_s:
            most = min(most, int(below / pair.first.usd_per_s))
        fewest = fewest_of(
            lambda count: self.holding.holds(self._fleet(pair, count, seconds), self.z, firsts), least=least, most=most
        )
        return (1, 0) if fewest is None else (fewest, most)

    def _most_seconds(self, pair: Pair, count: int, least: int, left: float) -> int:
        """Largest number of replicas of the second pool within the remaining budget ``left``, devices and power."""
        most = self.holding.most_replicas(pair.second)
        second_usd = pair.second.usd_per_s or 0.0
        if math.isfinite(left) and second_usd:
            most = min(most, math.ceil(left / second_usd - 1e-9) - 1)
        while most >= least and not self.holding.allowed(self._fleet(pair, count, most)):
            most -= 1
        return most

    def fewest_seconds(self, pair: Pair, count: int, *, most: int) -> int | None:
        """The fewest replicas of the second pool that keep the limits together with ``count`` of the first."""
        return fewest_of(
            lambda seconds: self.holding.holds(self._fleet(pair, count, seconds), self.z, self.limits),
            least=self._least_seconds(pair), most=most,
        )  # fmt: skip


def _of_reading(name: str) -> bool:
    """Whether a metric depends on prefill only."""
    return name.rpartition(":")[2].split("_")[0] in ("ttft", "queue")
