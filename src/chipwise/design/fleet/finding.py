"""Finds the cheapest arrangements that keep the limits, with the fewest replicas; prunes the rest.

If there are few arrangements, all are evaluated; otherwise a search strategy chooses which. Fleets of two pools are
combined from those that fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from chipwise.design.fleet.arrangements import Arrangement, ArrangementSpace
from chipwise.design.fleet.evaluating import NODES, Candidate, Evaluator
from chipwise.design.fleet.holding import Fleet, Holding, Times, exceeded, limits_of, price_order
from chipwise.design.fleet.question import FleetQuestion
from chipwise.design.fleet.two_pools import Pair, TwoPools
from chipwise.design.strategies.algorithms import make_strategy
from chipwise.design.strategies.strategy import Goal, Limit, Problem

DRAWS = 4000  # random draws for the rank confidence
MOST_LISTED = 1000  # up to this many arrangements are all priced; else a strategy chooses this many
BATCH = 100  # proposals of a strategy per batch
STRATEGY = "evolution"
NEAR = 1.25  # fleets of two pools are listed up to this multiple of the cheapest fleet's price


class Finder:
    """The search for one question.

    Args:
        question: The question.
        known: Metrics of earlier replays, see :class:`Evaluator`.
        on_progress: Called with the number of evaluated arrangements and of all.

    Raises:
        UnknownName: A device that no data sheet describes.
    """

    def __init__(
        self,
        question: FleetQuestion,
        *,
        known: Mapping[str, Mapping[str, float]] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.on_progress = on_progress
        self.space = space = ArrangementSpace(question)
        self.evaluator = Evaluator(question, known)
        self.longest = self.evaluator.longest
        self.question = self.evaluator.question
        self.holding = Holding(self.question, self.evaluator)
        self.z = self.holding.z
        asked = list(space)
        if len(asked) > MOST_LISTED:
            self.candidates, self.problems = self._chosen(space)
        else:
            self.candidates, self.problems = self.evaluator.candidates(asked)

    def _chosen(self, space: ArrangementSpace) -> tuple[list[Candidate], dict[str, str]]:
        """The arrangements that a strategy chooses to price, and why others do not fit."""
        limits = limits_of(self.question)

        def absent(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            missing = np.array([space.arrangement(row) is None for row in rows], float)
            return np.zeros((len(rows), 0)), missing[:, None]

        problem = Problem(
            cardinalities=space.cardinalities,
            goals=(Goal(name="usd_per_s"),),
            limits=(Limit(name="no such arrangement", free=True), Limit(name="limits on times")),
            free=absent,
        )
        strategy = make_strategy(STRATEGY, problem, seed=self.question.seed)
        found: dict[Arrangement, Candidate] = {}
        problems: dict[str, str] = {}
        tried = 0
        while tried < MOST_LISTED:
            rows = strategy.ask(min(BATCH, MOST_LISTED - tried))
            if not len(rows):
                break
            asked = [space.arrangement(row) for row in rows]
            fitting, reasons = self.evaluator.candidates([each for each in asked if each is not None])
            problems |= reasons
            found |= {each.arrangement: each for each in fitting}
            prices, broken = [], []
            for number, each in enumerate(asked):
                candidate = None if each is None else found.get(each)
                price = self._usd_per_s(candidate, limits)
                prices.append(1e9 if price is None else price)
                broken.append([float(each is None), 1.0 if price is None else 0.0])
                self._progress(tried + number, MOST_LISTED)
            strategy.tell(rows, np.array(prices)[:, None], np.array(broken))
            tried += len(rows)
        return list(found.values()), problems

    def _usd_per_s(self, candidate: Candidate | None, limits: Times) -> float | None:
        """Price of the cheapest fleet of an arrangement that keeps the limits; its devices if no price is known."""
        if candidate is None:
            return None
        replicas = self.fewest(candidate, self.z, limits)
        if replicas is None:
            return None
        return candidate.usd_per_s_of(replicas) or 1e3 * replicas * candidate.arrangement.devices

    def _progress(self, done: int, total: int) -> None:
        if self.on_progress is not None:
            self.on_progress(done, total)

    def fewest(self, candidate: Candidate, z: float, limits: Times, *, most: int | None = None) -> int | None:
        """The fewest replicas of one arrangement that keep the limits, see :meth:`Holding.fewest`."""
        return self.holding.fewest(candidate, z, limits, most=most)

    def found(self, limits: Times | None = None) -> list[Fleet]:
        """The cheapest fleet within the limits for every device and every kind of two pools, cheapest first.

        Fleets with unknown prices come last. Fleets of two pools are listed if they cost at most ``NEAR`` times as much
        as the cheapest fleet of one pool.
        """
        limits = limits_of(self.question) if limits is None else limits
        fleets = self.of_one(limits) if "together" in self.question.fleets else []
        cheapest = min(map(price_order, fleets), default=math.inf)
        for kind in dict.fromkeys(self.question.fleets):
            if kind == "together":
                continue
            pools = TwoPools(self.holding, kind, self.candidates, limits, on_progress=self.on_progress)
            fleet = pools.found(NEAR * cheapest)
            if fleet is not None:
                fleets.append(fleet)
        return sorted(fleets, key=lambda each: (price_order(each), each.devices))

    def of_one(self, limits: Times, *, z: float | None = None, device: str | None = None) -> list[Fleet]:
        """The cheapest fleet of one pool within the limits, for every device.

        Args:
            limits: Limits on times.
            z: Deviation of the step times at which limits must hold. Default: that of the question's confidence.
            device: Only this device.
        """
        holding = self.holding
        z = self.z if z is None else z
        ordered = sorted(
            (each for each in self.candidates if device in (None, each.arrangement.device)),
            key=lambda each: (holding.bound_usd_per_s(each, z), each.arrangement.devices),
        )
        best: dict[str, Fleet] = {}
        for number, candidate in enumerate(ordered):
            if device is None:
                self._progress(number, len(ordered))
            held = best.get(candidate.arrangement.device)
            most = holding.most_replicas(candidate)
            if held is not None:  # cheaper than the best fleet of this device so far
                most = min(most, (held.devices - 1) // candidate.arrangement.devices)
            replicas = self.fewest(candidate, z, limits, most=most)
            if replicas is not None:
                best[candidate.arrangement.device] = Fleet(candidate=candidate, replicas=replicas)
        if device is None:
            self._progress(len(ordered), len(ordered))
        return list(best.values())

    def needed(self, device: str, limits: Times) -> Fleet | None:
        """The cheapest fleet of one device that keeps the limits if step times are as predicted, without a margin."""
        return next(iter(self.of_one(limits, z=0.0, device=device)), None)

    def needed_of_two(self, fleet: Fleet, limits: Times) -> Fleet | None:
        """Like :meth:`needed`, for a fleet of two pools with the same two arrangements."""
        first, second = fleet.both
        pools = TwoPools(self.holding, fleet.kind, (), limits)
        pools.z = 0.0
        pair = Pair(first=first, second=second, bound=0.0)
        return pools.cheapest(pair, price_order(fleet) * (1 + 1e-6))  # it may cost as much as the fleet, but not more

    def closest(self, limits: Times, *, device: str | None = None) -> tuple[Fleet, float, dict[str, float]] | None:
        """The fleet of one pool that exceeds the limits least, with the excess and its times.

        Times are upper bounds at the question's confidence. If ``device`` is given, only that device is considered.
        """
        best: tuple[Fleet, float, dict[str, float]] | None = None
        for candidate in (each for each in self.candidates if device in (None, each.arrangement.device)):
            replicas = min(self.holding.most_replicas(candidate), 4 * self.holding.least_replicas(candidate, self.z))
            if replicas < 1:
                continue
            fleet = Fleet(candidate=candidate, replicas=replicas)
            if self.holding.overloaded(fleet, self.z):
                continue
            metrics = self.holding.metrics(fleet, self.z)
            ratio = exceeded(metrics, limits)
            if best is None or ratio < best[1]:
                best = (fleet, ratio, metrics)
        return best

    def rank_confidence(self, first: Fleet, second: Fleet, limits: Times, *, seed: int) -> float | None:
        """The probability that ``first`` is the cheaper of two fleets, each with the replicas that its error requires.

        Errors of the same device are equal in both; None if a price is unknown.
        """
        if first.usd_per_s is None or second.usd_per_s is None:
            return None
        nodes = np.array(NODES)
        costs = [np.array([self._needed(fleet, z, limits) for z in NODES]) for fleet in (first, second)]
        draws = np.random.default_rng(seed).standard_normal((2, DRAWS))
        if first.candidate.device.name == second.candidate.device.name:
            draws[1] = draws[0]
        own = [
            cost[np.clip(np.searchsorted(nodes, z), 0, len(nodes) - 1)] for cost, z in zip(costs, draws, strict=True)
        ]
        known = np.isfinite(own[0]) | np.isfinite(own[1])
        if not known.any():
            return None
        ties = own[0] == own[1]
        return float(((own[0] < own[1]) | (ties & (draws[0] < draws[1])))[known].mean())

    def _needed(self, fleet: Fleet, z: float, limits: Times) -> float:
        """Price of the fleet's arrangements at this error; the size of the first of two pools is kept."""
        if fleet.second is None:
            replicas = self.fewest(fleet.candidate, z, limits, most=4 * fleet.replicas + 4)
            return np.inf if replicas is None else fleet.candidate.usd_per_s_of(replicas) or 0.0
        pools = TwoPools(self.holding, fleet.kind, (), limits)
        pools.z = z
        seconds = pools.fewest_seconds(fleet, most=4 * fleet.seconds + 4)
        if seconds is None:
            return np.inf
        first, second = fleet.candidate.usd_per_s_of(fleet.replicas), fleet.second.usd_per_s_of(seconds)
        return (first or 0.0) + (second or 0.0)
