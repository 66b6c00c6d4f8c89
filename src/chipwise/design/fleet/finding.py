"""Finds the cheapest fleets that meet the limits: for each arrangement the fewest replicas.

Arrangements that cannot be cheaper than the best one found are skipped. Fleets of two pools combine two arrangements
that fit in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from chipwise.design.fleet.arrangements import arrangements_of, devices_of
from chipwise.design.fleet.evaluating import NODES, Evaluator
from chipwise.design.fleet.holding import Fleet, Holding, Times, exceeded, limits_of, price_order
from chipwise.design.fleet.question import FleetQuestion
from chipwise.design.fleet.two_pools import Pair, TwoPools

DRAWS = 4000  # random draws for the rank confidence
NEAR = 1.25  # fleets of two pools are listed if they cost at most this many times as much as the cheapest fleet


class Finder:
    """Searches for the cheapest fleets that answer one question.

    Args:
        question: The question.
        known: Metrics of earlier replays; see :class:`Evaluator`.
        on_progress: Called with the number of evaluated arrangements and of all arrangements.

    Raises:
        UnknownName: No data sheet describes a device.
    """

    def __init__(
        self,
        question: FleetQuestion,
        *,
        known: Mapping[str, Mapping[str, float]] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.on_progress = on_progress
        self.devices = devices_of(question)
        self.arrangements = arrangements_of(question, self.devices)
        self.evaluator = Evaluator(question, known)
        self.longest = self.evaluator.longest
        self.question = self.evaluator.question
        self.holding = Holding(self.question, self.evaluator)
        self.z = self.holding.z
        self.candidates, self.problems = self.evaluator.candidates(self.arrangements)

    def _progress(self, done: int, total: int) -> None:
        if self.on_progress is not None:
            self.on_progress(done, total)

    def found(self, limits: Times | None = None) -> list[Fleet]:
        """The cheapest fleet within the limits for each device, and the cheapest with separate pools; cheapest first.

        Fleets with unknown prices come last. The fleet of two pools is listed if it costs at most ``NEAR`` times as
        much as the cheapest fleet of one pool.
        """
        limits = limits_of(self.question) if limits is None else limits
        fleets = self.of_one(limits) if "together" in self.question.fleets else []
        cheapest = min(map(price_order, fleets), default=math.inf)
        if "apart" in self.question.fleets:
            pools = TwoPools(self.holding, self.candidates, limits, on_progress=self.on_progress)
            fleet = pools.found(NEAR * cheapest)
            if fleet is not None:
                fleets.append(fleet)
        return sorted(fleets, key=lambda each: (price_order(each), each.devices))

    def of_one(self, limits: Times, *, z: float | None = None, device: str | None = None) -> list[Fleet]:
        """The cheapest fleet of one pool within the limits, for each device.

        Args:
            limits: Limits on times.
            z: The limits must be met with step times ``z`` standard deviations above the prediction. Default: the
                quantile at the question's confidence.
            device: The only device to consider. Default: all.
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
            if held is not None:  # it costs less than this device's best fleet so far
                most = min(most, (held.devices - 1) // candidate.arrangement.devices)
            replicas = holding.fewest(candidate, z, limits, most=most)
            if replicas is not None:
                best[candidate.arrangement.device] = Fleet(candidate=candidate, replicas=replicas)
        if device is None:
            self._progress(len(ordered), len(ordered))
        return list(best.values())

    def needed(self, device: str, limits: Times) -> Fleet | None:
        """The cheapest fleet of this device that would meet the limits if step times were exactly as predicted."""
        return next(iter(self.of_one(limits, z=0.0, device=device)), None)

    def needed_of_two(self, fleet: Fleet, limits: Times) -> Fleet | None:
        """As :meth:`needed`, for a fleet of two pools with the two arrangements of ``fleet``."""
        pools = TwoPools(self.holding, (), limits, z=0.0)
        below = price_order(fleet) * (1 + 1e-6)  # it may cost as much as the fleet, but not more
        return pools.cheapest(Pair.of(fleet), below)

    def closest(self, limits: Times, *, device: str | None = None) -> tuple[Fleet, float, dict[str, float]] | None:
        """The fleet of one pool that is closest to the limits, its largest ratio of time to limit, and its times.

        Times are upper bounds at the question's confidence. If ``device`` is given, only fleets of that device are
        considered.
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
        """Probability that ``first`` is cheaper than ``second`` if both are resized for random prediction errors.

        Fleets on the same device have the same random error. The result is None if a price is unknown.
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
        """Price of the fleet, resized for step times ``z`` standard deviations above the prediction.

        In a fleet of two pools, only the second pool is resized.
        """
        if fleet.second is None:
            replicas = self.holding.fewest(fleet.candidate, z, limits, most=4 * fleet.replicas + 4)
            return np.inf if replicas is None else fleet.candidate.usd_per_s_of(replicas) or 0.0
        pools = TwoPools(self.holding, (), limits, z=z)
        seconds = pools.fewest_seconds(Pair.of(fleet), fleet.replicas, most=4 * fleet.seconds + 4)
        if seconds is None:
            return np.inf
        first, second = fleet.candidate.usd_per_s_of(fleet.replicas), fleet.second.usd_per_s_of(seconds)
        return (first or 0.0) + (second or 0.0)
