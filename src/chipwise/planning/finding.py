"""Finds the cheapest arrangements that hold: each sort with the fewest replicas, cheapest sorts first, rest pruned.

Errors of a chip's step times are drawn once for a chip, the same in all of its arrangements, and independent between
chips. All times of an arrangement rise with its error, so that limits hold with probability ``confidence`` where they
hold at that quantile of the error: one replay answers whether a number of replicas is enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from chipwise.core.dtypes import DType
from chipwise.hardware import datasheet
from chipwise.hardware.runtime import default_runtime
from chipwise.planning.evaluating import NODES, Arrangement, Candidate, Evaluator, deviations
from chipwise.planning.question import Question

DRAWS = 4000  # of rank confidence
ONE_BY_ONE = 6  # numbers of replicas that are tried before steps grow
RUNTIMES = ("vllm", "sglang", "trtllm")
Times = Mapping[str, float]


def limits_of(question: Question) -> dict[str, float]:
    """All limits on times, those of classes as ``class:metric``."""
    limits = dict(question.limits)
    for name, own in question.class_limits.items():
        limits |= {f"{name}:{metric}": value for metric, value in own.items()}
    return limits


def arrangements(question: Question) -> Iterable[Arrangement]:
    """Every arrangement of one replica that the question allows.

    Raises:
        UnknownName: A device that no data sheet describes.
    """
    if question.devices:
        devices = [datasheet.load(name) for name in question.devices]
    else:
        devices = [sheet for name in datasheet.names() if (sheet := datasheet.load(name)).price is not None]
        devices += [datasheet.load(name) for name in question.prices if name not in {each.name for each in devices}]
    for device in devices:
        formats = question.weights or ("bf16", *(("fp8",) if DType.FP8 in device.peak_flops_per_s else ()))
        for runtime in question.runtimes or (default_runtime(device),):
            for weights in formats:
                for tp in question.degrees:
                    for pp in question.stages:
                        if tp * pp <= question.most_devices:
                            yield Arrangement(device=device.name, runtime=runtime, weights=weights, tp=tp, pp=pp)


def exceeded(metrics: Times, limits: Times) -> float:
    """The largest ratio of a time to its limit; a limit on what no request has is met."""
    return max((metrics.get(name, 0.0) / limit for name, limit in limits.items()), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """So many replicas of an arrangement."""

    candidate: Candidate
    replicas: int

    @property
    def devices(self) -> int:
        """Devices of all replicas."""
        return self.replicas * self.candidate.arrangement.devices

    @property
    def usd_per_s(self) -> float | None:
        """Of all devices; None where the price is unknown."""
        price = self.candidate.usd_per_s
        return None if price is None else self.replicas * price


class Finder:
    """The search for one question.

    Args:
        question: What is asked.
        known: Of replays made before, see :class:`Evaluator`.
        on_progress: Called with arrangements looked at and their number.
    """

    def __init__(
        self,
        question: Question,
        *,
        known: Mapping[str, Mapping[str, float]] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.question, self.on_progress = question, on_progress
        self.evaluator = Evaluator(question, known)
        self.z = deviations(question.confidence)
        asked = list(arrangements(question))
        self.longest = self.evaluator.longest
        self.question = self.evaluator.question
        self.candidates, self.problems = self.evaluator.candidates(asked)

    def most_replicas(self, candidate: Candidate) -> int:
        """Replicas that devices, power and budget allow; 0 where they allow none."""
        question = self.question
        most = question.most_devices // candidate.arrangement.devices
        if question.power_w is not None:
            power = candidate.device.board_power
            if power is None:
                return 0  # unknown watts hold no limit on watts
            most = min(most, int(question.power_w / (power.number * candidate.arrangement.devices) + 1e-9))
        if question.usd_per_s is not None:
            if candidate.usd_per_s is None:
                return 0
            most = min(most, int(question.usd_per_s / candidate.usd_per_s + 1e-9))
        return most

    def least_replicas(self, candidate: Candidate, z: float) -> int:
        """Replicas without which more arrives than can be served."""
        return max(1, math.ceil(self.evaluator.rate_per_s / self.evaluator.capacity_per_s(candidate, z) - 1e-9))

    def holds(self, candidate: Candidate, replicas: int, z: float, limits: Times) -> bool:
        """Whether all limits hold with so many replicas, at this deviation of the step times."""
        if self.evaluator.overloaded(candidate, replicas, z):
            return False
        return exceeded(self.evaluator.metrics(candidate, replicas, z), limits) <= 1.0

    def fewest(self, candidate: Candidate, z: float, limits: Times, *, most: int | None = None) -> int | None:
        """The fewest replicas that hold; None where not even ``most`` do.

        A few numbers are tried one by one; beyond, steps grow, and the last step is halved until the border is found.
        """
        most = self.most_replicas(candidate) if most is None else most
        replicas = self.least_replicas(candidate, z)
        if most < replicas or not self._can(candidate, z, limits):
            return None
        failed, tries = replicas - 1, 0
        while not self.holds(candidate, replicas, z, limits):
            if replicas == most:
                return None
            failed, tries = replicas, tries + 1
            replicas = min(replicas + (1 if tries < ONE_BY_ONE else max(1, replicas // 3)), most)
        while replicas - failed > 1:
            middle = (replicas + failed) // 2
            if self.holds(candidate, middle, z, limits):
                replicas = middle
            else:
                failed = middle
        return replicas

    def _can(self, candidate: Candidate, z: float, limits: Times) -> bool:
        """Whether a request alone meets the limits: if it does not, no number of replicas does."""
        slow = candidate.slow(z)
        table, request = candidate.copy.table, candidate.arrangement.request(self.question)
        kinds = self.question.classes
        if self.question.trace is not None or any(each.spread or each.shared_tokens for each in kinds):
            return True
        shortest = min(each.prompt_tokens for each in kinds)
        first_s = slow[1] * table.mixed_s(0, 0, [(min(shortest, candidate.copy.policy.most_tokens), 0)])
        step_s = slow[0] * table.decode_s(1, request.prompt_tokens)
        least = {"ttft": first_s, "tpot": 0.98 * step_s}
        return all(
            least.get(name.rpartition(":")[2].split("_")[0], 0.0) <= limit for name, limit in limits.items()
        )  # fmt: skip

    def bound_usd_per_s(self, candidate: Candidate) -> float:
        """Dollars a second without which more arrives than can be served; infinite where the price is unknown."""
        if candidate.usd_per_s is None:
            return math.inf
        return self.least_replicas(candidate, self.z) * candidate.usd_per_s

    def found(self, limits: Times | None = None) -> list[Fleet]:
        """The cheapest fleet of every device that holds, cheapest first; those of unknown price last."""
        limits = limits_of(self.question) if limits is None else limits
        best: dict[str, Fleet] = {}
        ordered = sorted(self.candidates, key=lambda each: (self.bound_usd_per_s(each), each.arrangement.devices))
        for number, candidate in enumerate(ordered):
            if self.on_progress is not None:
                self.on_progress(number, len(ordered))
            held = best.get(candidate.arrangement.device)
            most = self.most_replicas(candidate)
            if held is not None:
                most = min(most, self._fewer_than(held, candidate))
            replicas = self.fewest(candidate, self.z, limits, most=most)
            if replicas is not None:
                best[candidate.arrangement.device] = Fleet(candidate=candidate, replicas=replicas)
        if self.on_progress is not None:
            self.on_progress(len(ordered), len(ordered))
        return sorted(best.values(), key=lambda each: (price_order(each), each.devices))

    def _fewer_than(self, held: Fleet, candidate: Candidate) -> int:
        """Replicas that cost less than a fleet of the same device, whose price is known or not."""
        return (held.devices - 1) // candidate.arrangement.devices

    def closest(self, limits: Times) -> tuple[Fleet, float, dict[str, float]] | None:
        """Of fleets that do not hold: the one that exceeds the limits least, by how much, and its times."""
        best: tuple[Fleet, float, dict[str, float]] | None = None
        for candidate in self.candidates:
            replicas = min(self.most_replicas(candidate), 4 * self.least_replicas(candidate, self.z))
            if replicas < 1 or self.evaluator.overloaded(candidate, replicas, self.z):
                continue
            metrics = self.evaluator.metrics(candidate, replicas, self.z)
            ratio = exceeded(metrics, limits)
            if best is None or ratio < best[1]:
                best = (Fleet(candidate=candidate, replicas=replicas), ratio, metrics)
        return best

    def chance(self, fleet: Fleet, limits: Times) -> float:
        """The probability that all limits hold, from replays at several quantiles of the step times' error."""
        ratios = []
        for z in (*NODES, self.z):
            over = self.evaluator.overloaded(fleet.candidate, fleet.replicas, z)
            metrics = {} if over else self.evaluator.metrics(fleet.candidate, fleet.replicas, z)
            ratios.append((z, math.inf if over else exceeded(metrics, limits)))
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

    def rank_confidence(self, first: Fleet, second: Fleet, limits: Times, *, seed: int) -> float | None:
        """The probability that ``first`` is the cheaper of two, each with as many replicas as its own errors need.

        Draws of one device are the same in both; None where a price is unknown.
        """
        if first.usd_per_s is None or second.usd_per_s is None:
            return None
        nodes = np.array(NODES)
        costs = []
        for fleet in (first, second):
            needed = [self.fewest(fleet.candidate, z, limits, most=4 * fleet.replicas + 4) for z in NODES]
            price = fleet.candidate.usd_per_s or 0.0
            costs.append(np.array([np.inf if each is None else each * price for each in needed]))
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


def price_order(fleet: Fleet) -> float:
    """Dollars a second; infinite where unknown, so that it comes last and is never called cheapest."""
    return math.inf if fleet.usd_per_s is None else fleet.usd_per_s


def cheapest_by_force(question: Question, *, most_replicas: int) -> Fleet | None:
    """The cheapest fleet that holds, of every arrangement with every number of replicas.

    What :class:`Finder` must find, without its pruning; for small spaces.
    """
    finder = Finder(question)
    limits = limits_of(question)
    held = [
        Fleet(candidate=candidate, replicas=replicas)
        for candidate in finder.candidates
        for replicas in range(1, min(most_replicas, finder.most_replicas(candidate)) + 1)
        if candidate.usd_per_s is not None and finder.holds(candidate, replicas, finder.z, limits)
    ]
    return min(held, key=lambda each: (price_order(each), each.devices), default=None)
