"""Brute-force search of fleets, as a reference for the finder: every arrangement with every number of replicas."""

from __future__ import annotations

from chipwise.design.fleet.finding import Finder, Fleet, price_order
from chipwise.design.fleet.holding import limits_of
from chipwise.design.fleet.question import FleetQuestion
from chipwise.design.fleet.two_pools import TwoPools


def cheapest_by_force(question: FleetQuestion, *, most_replicas: int) -> Fleet | None:
    """The cheapest fleet that holds, of every arrangement with every number of replicas, of one pool and of two.

    What :class:`Finder` must find, without its pruning; for small spaces.
    """
    finder = Finder(question)
    limits = limits_of(question)
    priced = [each for each in finder.candidates if each.usd_per_s is not None]
    numbers = range(1, most_replicas + 1)
    fleets = []
    if "together" in question.fleets:
        fleets += [Fleet(candidate=each, replicas=count) for each in priced for count in numbers]
    if "apart" in question.fleets:
        pools = TwoPools(finder.holding, priced, limits)
        fleets += [
            Fleet(candidate=pair.first, replicas=count, kind="apart", second=pair.second, seconds=seconds)
            for pair in pools.pairs()
            for count in numbers
            for seconds in numbers
        ]
    held = [
        fleet for fleet in fleets if finder.holding.allowed(fleet) and finder.holding.holds(fleet, finder.z, limits)
    ]
    return min(held, key=lambda each: (price_order(each), each.devices), default=None)
