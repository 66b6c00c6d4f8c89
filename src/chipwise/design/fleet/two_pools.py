"""Finds the cheapest fleet of two pools: prefill and decode apart, or two kinds of devices behind one router.

Both pools run the same runtime and weight format, so that caches can be transferred and answers are the same. Pairs of
arrangements are evaluated in the order of a lower bound on their price, until the bound exceeds the cheapest fleet
found. If too many pairs are left, a search strategy chooses which to evaluate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.design.fleet.evaluating import Candidate
from chipwise.design.fleet.holding import Fleet, Holding, Times, fewest_of, price_order
from chipwise.design.fleet.question import FleetKind
from chipwise.design.strategies.algorithms import make_strategy
from chipwise.design.strategies.strategy import Goal, Limit, Problem, Rows

MOST_LISTED = 400  # up to this many pairs are all evaluated; else a strategy chooses this many
BATCH = 20  # pairs that a strategy proposes together
STRATEGY = "evolution"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two arrangements, and a lower bound on the price of a fleet of both."""

    first: Candidate
    second: Candidate
    bound: float


class TwoPools:
    """The search for one kind of fleet.

    Args:
        holding: Decides whether fleets keep the limits.
        kind: ``apart`` or ``mixed``.
        candidates: Arrangements of each pool; those of unknown price are left out.
        limits: Limits on times.
        on_progress: Called with the number of evaluated pairs and of all pairs.
    """

    def __init__(
        self,
        holding: Holding,
        kind: FleetKind,
        candidates: Sequence[Candidate],
        limits: Times,
        *,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.holding, self.kind, self.limits, self.on_progress = holding, kind, limits, on_progress
        self.candidates = [each for each in candidates if each.usd_per_s is not None]
        self.z = holding.z
        self.looked_at = 0

    def found(self, below: float = math.inf) -> Fleet | None:
        """The cheapest fleet within the limits that costs less than ``below`` dollars per second; None if none does."""
        pairs = self.pairs(below)
        if len(pairs) > MOST_LISTED:
            return self._chosen(pairs, below)
        best: Fleet | None = None
        for number, pair in enumerate(pairs):
            if pair.bound >= (below if best is None else price_order(best)):
                break
            self._progress(number, len(pairs))
            best = self.cheapest(pair, below if best is None else price_order(best)) or best
        return best

    def _progress(self, done: int, total: int) -> None:
        if self.on_progress is not None:
            self.on_progress(done, total)

    # pairs and what they cost at least

    def pairs(self, below: float = math.inf) -> list[Pair]:
        """The pairs that may cost less than ``below``, cheapest bound first."""
        found = []
        for i, first in enumerate(self.candidates):
            for j, second in enumerate(self.candidates):
                if self.kind == "mixed" and i >= j:
                    continue
                bound = self.bound(first, second)
                if bound < below:
                    found.append(Pair(first=first, second=second, bound=bound))
        return sorted(found, key=lambda each: each.bound)

    def bound(self, first: Candidate, second: Candidate) -> float:
        """Lower bound on the price of a fleet of both, in dollars a second; infinite if none can exist."""
        here, there = first.arrangement, second.arrangement
        if here.weights != there.weights or here.runtime != there.runtime:
            return math.inf
        prices = first.usd_per_s or 0.0, second.usd_per_s or 0.0
        rate, served = self.holding.evaluator.rate_per_s, self.holding.evaluator
        if self.kind == "apart":
            if here.speculation is not None or first.reading is None or second.writing is None:
                return math.inf
            if not self.holding.evaluator.question.link_bytes_per_s and not first.device.links:
                return math.inf
            return prices[0] * self._least(served.reading_per_s(first, self.z)) + prices[1] * self._least(
                served.writing_per_s(second, self.z)
            )
        if here.device == there.device:
            return math.inf
        full = served.capacity_per_s(first, self.z), served.capacity_per_s(second, self.z)
        lacking = max(rate - sum(full), 0.0)
        return sum(prices) + lacking * min(price / each for price, each in zip(prices, full, strict=True))

    def _least(self, per_s: float) -> int:
        """Least number of replicas, each serving ``per_s`` requests per second, that cover the arrival rate."""
        return max(1, math.ceil(self.holding.evaluator.rate_per_s / per_s - 1e-9))

    # one pair

    def cheapest(self, pair: Pair, below: float = math.inf) -> Fleet | None:
        """The cheapest fleet of a pair that keeps the limits and costs less than ``below``; None if none does."""
        if not self._can(pair):
            return None
        self.looked_at += 1
        apart = self.kind == "apart"
        first_usd, second_usd = pair.first.usd_per_s or 0.0, pair.second.usd_per_s or 0.0
        best: Fleet | None = None
        ends = self._ends(pair, below)
        for count in range(ends[0], ends[1] + 1):
            limit = below if best is None else price_order(best)
            left = limit - count * first_usd
            least = self._least_seconds(pair, count)
            if least * second_usd >= left:
                if apart or count * first_usd + second_usd >= limit:
                    break
                continue
            seconds = self._fewest_seconds(pair, count, least, left)
            if seconds is None:
                continue
            best = self._fleet(pair, count, seconds)
            if seconds == (least if apart else 1):
                break  # a larger first pool cannot make the second smaller
        return best

    def _fleet(self, pair: Pair, count: int, seconds: int) -> Fleet:
        return Fleet(candidate=pair.first, replicas=count, kind=self.kind, second=pair.second, seconds=seconds)

    def _can(self, pair: Pair) -> bool:
        """Whether single requests meet the limits."""
        able = self.holding.can
        if self.kind == "apart":
            return able(pair.first, self.z, self.limits, writes=False) and able(
                pair.second, self.z, self.limits, reads=False
            )
        return able(pair.first, self.z, self.limits) and able(pair.second, self.z, self.limits)

    def _least_seconds(self, pair: Pair, count: int) -> int:
        served = self.holding.evaluator
        if self.kind == "apart":
            return self._least(served.writing_per_s(pair.second, self.z))
        lacking = served.rate_per_s - count * served.capacity_per_s(pair.first, self.z)
        return max(1, math.ceil(lacking / served.capacity_per_s(pair.second, self.z) - 1e-9))

    def _ends(self, pair: Pair, below: float) -> tuple[int, int]:
        """The range of the first pool's replicas to try."""
        most = self.holding.most_replicas(pair.first)
        if self.kind == "mixed":
            return 1, most
        least = self._least(self.holding.evaluator.reading_per_s(pair.first, self.z))
        firsts = {name: value for name, value in self.limits.items() if _of_reading(name)}
        if not firsts:
            return least, most
        seconds = self._least(self.holding.evaluator.writing_per_s(pair.second, self.z))  # unrelated to first tokens
        if math.isfinite(below) and pair.first.usd_per_s:
            most = min(most, int(below / pair.first.usd_per_s))
        fewest = fewest_of(
            lambda count: self.holding.holds(self._fleet(pair, count, seconds), self.z, firsts), least=least, most=most
        )
        return (1, 0) if fewest is None else (fewest, most)

    def _fewest_seconds(self, pair: Pair, count: int, least: int, left: float) -> int | None:
        most = self.holding.most_replicas(pair.second)
        second_usd = pair.second.usd_per_s or 0.0
        if math.isfinite(left) and second_usd:
            most = min(most, math.ceil(left / second_usd - 1e-9) - 1)
        while most >= least and not self.holding.allowed(self._fleet(pair, count, most)):
            most -= 1
        return fewest_of(
            lambda seconds: self.holding.holds(self._fleet(pair, count, seconds), self.z, self.limits),
            least=least, most=most,
        )  # fmt: skip

    def fewest_seconds(self, fleet: Fleet, *, most: int) -> int | None:
        """The fewest replicas of the second pool that keep the limits together with the first."""
        first, second = fleet.both
        pair = Pair(first=first, second=second, bound=0.0)
        return fewest_of(
            lambda seconds: self.holding.holds(self._fleet(pair, fleet.replicas, seconds), self.z, self.limits),
            least=self._least_seconds(pair, fleet.replicas), most=most,
        )  # fmt: skip

    # more pairs than can be evaluated

    def _chosen(self, pairs: Sequence[Pair], below: float) -> Fleet | None:
        """The cheapest fleet of the pairs that a strategy chooses."""
        bounds = {(id(pair.first), id(pair.second)): pair for pair in pairs}
        problem = self._problem(bounds)
        strategy = make_strategy(STRATEGY, problem, seed=self.holding.question.seed)
        start = [self._row(pair) for pair in pairs[:BATCH]]
        best: Fleet | None = None
        tried = 0
        rows: Rows = np.array(start, np.int64)
        while tried < MOST_LISTED and len(rows):
            prices, violations = [], []
            for row in rows:
                self._progress(tried, MOST_LISTED)
                pair = self._pair(row, bounds)
                fleet = None
                if pair is not None and pair.bound < (below if best is None else price_order(best)):
                    fleet = self.cheapest(pair, below if best is None else price_order(best))
                best = fleet or best
                worst = math.inf if pair is None else pair.bound
                prices.append(price_order(fleet) if fleet else worst)
                violations.append([float(pair is None), 0.0 if fleet else 1.0])
                tried += 1
            strategy.tell(rows, np.array(prices)[:, None], np.array(violations))
            rows = strategy.ask(BATCH)
        return best

    def _problem(self, pairs: dict[tuple[int, int], Pair]) -> Problem:
        """Rows of pairs of arrangements; the lower bound on a pair's price guides the order."""

        def free(rows: Rows) -> tuple[Float64Array, Float64Array]:
            absent = np.array([self._pair(row, pairs) is None for row in rows], float)
            return np.zeros((len(rows), 0)), absent[:, None]

        def prior(rows: Rows) -> Float64Array:
            found = [self._pair(row, pairs) for row in rows]
            return np.array([1e9 if pair is None else pair.bound for pair in found])

        return Problem(
            cardinalities=np.array([len(self.candidates)] * 2, np.int64),
            goals=(Goal(name="usd_per_s"),),
            limits=(Limit(name="no such pair", free=True), Limit(name="limits on times")),
            free=free,
            prior=prior,
        )

    def _row(self, pair: Pair) -> list[int]:
        return [next(i for i, each in enumerate(self.candidates) if each is one) for one in (pair.first, pair.second)]

    def _pair(self, row: Rows, pairs: dict[tuple[int, int], Pair]) -> Pair | None:
        first, second = (self.candidates[int(i)] for i in row)
        return pairs.get((id(first), id(second)))


def _of_reading(name: str) -> bool:
    """Whether a metric is determined by prefill alone."""
    return name.rpartition(":")[2].split("_")[0] in ("ttft", "queue")
