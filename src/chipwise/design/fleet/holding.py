"""Decides whether fleets of one or two pools meet the limits, and computes lower bounds on their price.

The prediction error of step times is one random factor per chip: the same for all arrangements of a chip, and
independent between chips. In a fleet of two pools, the errors of the pools' chips are assumed to be equal, so that the
probability is not overstated. All times of a fleet rise with the error. The limits are therefore met with probability
``confidence`` if they are met when the error is at its quantile ``confidence``. One replay with this error decides
whether a number of replicas is enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import NormalDist

from chipwise.design.fleet.evaluating import NODES, Candidate, Evaluator, deviations
from chipwise.design.fleet.question import FleetKind, FleetQuestion
from chipwise.hardware import instances

ONE_BY_ONE = 6  # numbers that are tried in steps of one, before steps grow
Times = Mapping[str, float]


def limits_of(question: FleetQuestion) -> dict[str, float]:
    """Maps metrics to a question's limits on times; limits on single classes have the name ``CLASS:METRIC``."""
    limits = dict(question.limits)
    for name, own in question.class_limits.items():
        limits |= {f"{name}:{metric}": value for metric, value in own.items()}
    return limits


def exceeded(metrics: Times, limits: Times) -> float:
    """The largest ratio of a time to its limit; limits on classes that have no requests count as met."""
    return max((metrics.get(name, 0.0) / limit for name, limit in limits.items()), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A fleet: replicas of one arrangement. If ``kind`` is ``apart``, they prefill, and a second pool decodes."""

    candidate: Candidate
    replicas: int
    kind: FleetKind = "together"
    second: Candidate | None = None
    seconds: int = 0

    @property
    def pools(self) -> tuple[tuple[Candidate, int], ...]:
        """Each pool's arrangement and number of replicas."""
        first = (self.candidate, self.replicas)
        return (first,) if self.second is None else (first, (self.second, self.seconds))

    @property
    def both(self) -> tuple[Candidate, Candidate]:
        """The two arrangements of a fleet of two pools.

        Raises:
            ValueError: The fleet has one pool.
        """
        if self.second is None:
            raise ValueError(f"{self.label}: this fleet has one pool")
        return self.candidate, self.second

    @property
    def devices(self) -> int:
        """Number of devices in all replicas of all pools."""
        return sum(count * candidate.arrangement.devices for candidate, count in self.pools)

    @property
    def usd_per_s(self) -> float | None:
        """Price of all devices in dollars per second; None if a price is unknown."""
        prices = [each.usd_per_s_of(count) for each, count in self.pools]
        known = [price for price in prices if price is not None]
        return sum(known) if len(known) == len(prices) else None

    @property
    def power_w(self) -> float | None:
        """Power of all boards in watts; None if a device's power is unknown."""
        watts = 0.0
        for candidate, count in self.pools:
            if candidate.device.board_power is None:
                return None
            watts += candidate.device.board_power.number * count * candidate.arrangement.devices
        return watts

    @property
    def label(self) -> str:
        """Text such as ``2 x l40s, TP 1, fp8, vllm``."""
        parts = []
        for number, (candidate, count) in enumerate(self.pools):
            where = candidate.arrangement
            part = ("prefill ", "decode ")[number] if self.kind == "apart" else ""
            parts.append(f"{part}{instances.counted(where.device, count * where.devices)}, {where.spread}")
        where = self.candidate.arrangement
        return f"{' + '.join(parts)}, {where.weights}, {where.runtime}"


def price_order(fleet: Fleet) -> float:
    """Sort key: dollars per second, or infinity if the price is unknown."""
    return math.inf if fleet.usd_per_s is None else fleet.usd_per_s


class Holding:
    """Decides whether fleets meet their limits, and computes lower bounds on their price.

    Args:
        question: The question.
        evaluator: Replays the question's load.
    """

    def __init__(self, question: FleetQuestion, evaluator: Evaluator) -> None:
        self.question, self.evaluator = question, evaluator
        self.z = deviations(question.confidence)

    def allowed(self, fleet: Fleet) -> bool:
        """Whether a fleet is within the limits on devices, power and budget."""
        question = self.question
        if fleet.devices > question.most_devices:
            return False
        if question.power_w is not None and (fleet.power_w is None or fleet.power_w > question.power_w * (1 + 1e-9)):
            return False  # unknown power cannot meet a limit on power
        if question.usd_per_s is None:
            return True
        return fleet.usd_per_s is not None and fleet.usd_per_s <= question.usd_per_s * (1 + 1e-9)

    def most_replicas(self, candidate: Candidate) -> int:
        """Largest number of replicas within the limits on devices, power and budget; 0 if not even one is allowed."""
        question = self.question
        most = question.most_devices // candidate.arrangement.devices
        if question.power_w is not None:
            power = candidate.device.board_power
            if power is None:
                return 0
            most = min(most, int(question.power_w / (power.number * candidate.arrangement.devices) + 1e-9))
        if question.usd_per_s is not None:
            if candidate.usd_per_s is None:
                return 0
            most = min(most, int(question.usd_per_s / candidate.usd_per_s + 1e-9))
        return most

    def least_replicas(self, candidate: Candidate, z: float) -> int:
        """Smallest number of replicas that together can serve the arrival rate."""
        return max(1, math.ceil(self.evaluator.rate_per_s / candidate.per_s(candidate.full, z) - 1e-9))

    def bound_usd_per_s(self, candidate: Candidate, z: float) -> float:
        """Lower bound on the price per second of a fleet that can serve the load; infinite if the price is unknown."""
        if candidate.usd_per_s is None:
            return math.inf
        return self.least_replicas(candidate, z) * candidate.usd_per_s

    def overloaded(self, fleet: Fleet, z: float) -> bool:
        """Whether the arrival rate exceeds the fleet's saturation."""
        if fleet.kind == "apart":
            first, second = fleet.both
            full = min(fleet.replicas * first.per_s(first.reading, z), fleet.seconds * second.per_s(second.writing, z))
        else:
            full = sum(count * candidate.per_s(candidate.full, z) for candidate, count in fleet.pools)
        return self.evaluator.rate_per_s > full * (1 + 1e-9)

    def metrics(self, fleet: Fleet, z: float) -> dict[str, float]:
        """A fleet's metrics, by name, if step times are ``z`` standard deviations above the prediction.

        They are times in seconds, and the state of the engines; see :meth:`Evaluator.metrics`.
        """
        if fleet.kind == "together":
            return self.evaluator.metrics(fleet.candidate, fleet.replicas, z)
        return self.evaluator.metrics_of_two(fleet.pools, z)

    def holds(self, fleet: Fleet, z: float, limits: Times) -> bool:
        """Whether a fleet meets all limits if step times are ``z`` standard deviations above the prediction."""
        return not self.overloaded(fleet, z) and exceeded(self.metrics(fleet, z), limits) <= 1.0

    def fewest(self, candidate: Candidate, z: float, limits: Times, *, most: int | None = None) -> int | None:
        """The fewest replicas of an arrangement that meet the limits; None if ``most`` replicas do not."""
        most = self.most_replicas(candidate) if most is None else most
        if not self.can(candidate, z, limits):
            return None
        return fewest_of(
            lambda replicas: self.holds(Fleet(candidate=candidate, replicas=replicas), z, limits),
            least=self.least_replicas(candidate, z),
            most=most,
        )

    def can(self, candidate: Candidate, z: float, limits: Times, *, reads: bool = True, writes: bool = True) -> bool:
        """Whether a single request, without any other load, could meet the limits; if not, no number of replicas does.

        Args:
            candidate: The arrangement.
            z: Error of step times, in standard deviations.
            limits: The limits.
            reads: Whether replicas of the arrangement prefill prompts.
            writes: Whether replicas of the arrangement decode.
        """
        slow = candidate.slow(z)
        table, request = candidate.copy.table, candidate.arrangement.request(self.question)
        kinds = self.question.classes
        if self.question.trace is not None or any(each.spread or each.shared_tokens for each in kinds):
            return True
        shortest = min(each.prompt_tokens for each in kinds)
        first_s = slow[1] * table.mixed_s(0, 0, [(min(shortest, candidate.copy.policy.most_tokens), 0)])
        speculation = candidate.copy.policy.speculation
        pace = speculation.drafted + 1 if speculation else 1
        step_s = slow[0] * table.decode_s(1, request.prompt_tokens) / pace
        least = {"ttft": first_s if reads else 0.0, "tpot": 0.98 * step_s if writes else 0.0}
        return all(
            least.get(name.rpartition(":")[2].split("_")[0], 0.0) <= limit for name, limit in limits.items()
        )  # fmt: skip

    def chance(self, fleet: Fleet, limits: Times) -> float:
        """The probability that all limits are met, from replays at several quantiles of the step times' error."""
        ratios = []
        for z in (*NODES, self.z):
            over = self.overloaded(fleet, z)
            ratios.append((z, math.inf if over else exceeded(self.metrics(fleet, z), limits)))
        ratios.sort()
        held = [z for z, ratio in ratios if ratio <= 1.0]
        if len(held) == len(ratios):
            return NormalDist().cdf(ratios[-1][0])
        if not held:
            return 1 - NormalDist().cdf(-ratios[0][0])
        last = held[-1]
        following = next((each for each in ratios if each[0] > last), None)
        if following is None:
            return NormalDist().cdf(last)
        low = dict(ratios)[last]
        share = (1 - low) / (following[1] - low) if math.isfinite(following[1]) else 0.0
        return NormalDist().cdf(last + share * (following[0] - last))


def fewest_of(holds: Callable[[int], bool], *, least: int, most: int) -> int | None:
    """The smallest number from ``least`` to ``most`` for which ``holds`` is true; None if it is true for none.

    ``holds`` must be true for all larger numbers too. The first few numbers are tried one after another. After them,
    numbers are tried in growing steps until ``holds`` is true. Bisection of the last step finds the smallest number.
    """
    if most < least:
        return None
    number, failed, tries = least, least - 1, 0
    while not holds(number):
        if number == most:
            return None
        failed, tries = number, tries + 1
        number = min(number + (1 if tries < ONE_BY_ONE else max(1, number // 3)), most)
    while number - failed > 1:
        middle = (number + failed) // 2
        if holds(middle):
            number = middle
        else:
            failed = middle
    return number
