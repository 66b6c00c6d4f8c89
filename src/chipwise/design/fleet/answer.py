"""The plan that answers a question: fleets ordered by price, what each limit costs, and how sure the order is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import NormalDist

from chipwise.core import units
from chipwise.core.digest import plain
from chipwise.core.files import write_output
from chipwise.core.results import Result
from chipwise.core.statistics import Z90
from chipwise.design.fleet.arrangements import Arrangement
from chipwise.design.fleet.evaluating import NODES, joules_per_token, usd_per_million
from chipwise.design.fleet.finding import Finder
from chipwise.design.fleet.holding import Fleet, limits_of, price_order
from chipwise.design.fleet.left_out import LeftOut, broken_limits, left_out
from chipwise.design.fleet.question import FleetKind, FleetQuestion
from chipwise.design.fleet.serving_commands import commands_of, dynamo_yaml
from chipwise.errors import Infeasible, counted
from chipwise.hardware import instances
from chipwise.predict.cost.model import Predicted
from chipwise.predict.load.outcome import MEASURES
from chipwise.predict.load.policy import Speculation
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.request import taken_for

FORMAT = "chipwise plan 1"  # value of ``format`` in plan files
SUREST = NormalDist().cdf(max(NODES)) - 1e-9  # highest probability of meeting the limits that replays can show
MUCH = 2.0  # a fleet this many times larger than needed is mostly margin
DEPLOYED = ("device", "runtime", "weights", "tp", "pp", "ep", "dp")  # fields of an option's deployment
SHOWN = ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99", "itl_p50", "itl_p99", "e2e_p50", "e2e_p99")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondPool:
    """The decode pool. ``share`` is always 1; it exists only because older plan files have it."""

    arrangement: Arrangement
    replicas: int
    devices: int
    share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Option(Result):
    """One fleet that meets the limits. Times are predicted, in seconds, with 90 % intervals; dollars are list prices.

    For a fleet of two pools (``kind`` is ``apart``), the fields from ``device`` to ``devices`` describe the prefill
    pool, and ``second`` describes the decode pool. ``chance`` is the probability that all limits are met;
    ``saturation_per_s`` is the number of requests per second at saturation, and ``bottleneck`` the resource that
    saturates first. ``needed_devices`` and ``needed_usd_per_h`` are the number of devices and the price of the cheapest
    fleet that would meet the limits if step times were exactly as predicted. That fleet uses the same device as this
    option (with two pools: the same two arrangements). Both are None if the question's confidence is at most 50 %.
    Unknown prices and energies are None.
    """

    device: str
    runtime: str
    weights: str
    tp: int
    pp: int
    ep: int
    dp: int
    speculation: Speculation | None
    replicas: int
    devices: int
    kind: FleetKind
    second: SecondPool | None
    usd_per_h: float | None
    usd_per_million_input_tokens: float | None
    usd_per_million_output_tokens: float | None
    joules_per_output_token: float | None
    board_power_w: float | None
    chance: float
    times: Mapping[str, Predicted]
    class_times: Mapping[str, Predicted]
    in_flight: float
    busy_share: float
    saturation_per_s: float
    bottleneck: str
    provenance: str
    commands: tuple[str, ...] = ()
    deployment: str = ""  # for separate prefill and decode: YAML for NVIDIA Dynamo
    needed_devices: int | None = None
    needed_usd_per_h: float | None = None

    @property
    def arrangement(self) -> Arrangement:
        """How one replica of the first pool is run."""
        deployment = Deployment(**{name: getattr(self, name) for name in DEPLOYED})
        return Arrangement(deployment=deployment, speculation=self.speculation)

    @property
    def label(self) -> str:
        """Text such as ``2 x l40s, TP 1, FP8, vllm``."""
        pools = [_pool_label(self.arrangement, self.replicas, self.devices)]
        if self.second is not None:
            pools.append(_pool_label(self.second.arrangement, self.second.replicas, self.second.devices))
        if self.kind == "apart":
            pools = [f"prefill {pools[0]}", f"decode {pools[1]}"]
        return f"{' + '.join(pools)}, {self.weights.upper()}, {self.runtime}"

    @property
    def margin(self) -> float | None:
        """Number of devices, divided by the number that would suffice without prediction error; None if unknown."""
        whole = self.devices + (self.second.devices if self.second else 0)
        return None if self.needed_devices is None else whole / self.needed_devices

    @property
    def pays_for_certainty(self) -> bool:
        """Whether half of the fleet or more is margin for prediction error."""
        return self.margin is not None and self.margin >= MUCH

    @property
    def about_margin(self) -> str:
        """Says how many devices would suffice if predictions were exact; empty if unknown or if all would be needed."""
        if self.margin is None or self.margin <= 1:
            return ""
        price = "" if self.needed_usd_per_h is None else f" (${self.needed_usd_per_h:,.2f}/h)"
        text = f"without prediction error, {self.needed_devices:,}{price} would be enough"
        if not self.pays_for_certainty:
            return f"{text}; the other devices are a margin for prediction error"
        why = "this chip was not measured" if "unseen" in self.provenance else "the prediction's interval is wide"
        return f"{text}; {units.number(self.margin, digits=2)} times as many are needed for certainty, because {why}"

    def headline(self) -> str:
        """Describes the option in one sentence."""
        parts = []
        for name, label in (("ttft_p99", "P99 TTFT"), ("tpot_p99", "P99 TPOT"), ("itl_p99", "P99 ITL")):
            if name in self.times:
                each = self.times[name]
                shown = units.interval(each.value, each.low, each.high, "time")
                parts.append(f"{label} {units.show(each.value, 'time')} (90 %: {shown})")
        price = "price unknown" if self.usd_per_h is None else f"${self.usd_per_h:,.2f}/h"
        if self.usd_per_million_output_tokens is not None:
            price += f", {units.show(self.usd_per_million_output_tokens, 'price')} per million output tokens"
        least = "at least " if self.chance >= SUREST else ""
        held = f"meets the limits with probability {least}{units.show(self.chance, 'share', digits=2)}"
        more = f"; {self.about_margin}" if self.about_margin else ""
        return f"{self.label}: {', '.join(parts)}, {price}; {held}{more}"

    def rows(self) -> list[Mapping[str, object]]:
        """One row with the option's figures."""
        return [
            {
                "option": self.label, "devices": self.devices + (self.second.devices if self.second else 0),
                "usd_per_h": self.usd_per_h, "needed_devices": self.needed_devices,
                "needed_usd_per_h": self.needed_usd_per_h,
                **{name: item.value for name, item in self.times.items() if name in SHOWN},
                "chance": self.chance, "saturation_per_s": self.saturation_per_s, "bottleneck": self.bottleneck,
            }
        ]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitPrice:
    """What one limit costs: the cheapest fleet without this limit, and the dollars per hour saved by dropping it."""

    limit: str
    without: str
    saved_usd_per_h: float | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FleetPlan(Result):
    """The answer to a question: fleets that meet the limits, cheapest first, fleets with unknown prices last.

    ``rank_confidence`` is the probability that the first option is cheaper than the second, given the prediction errors
    of both. ``left_out`` lists the devices that are in no option, with reasons; ``problems`` says which arrangements
    cannot run, and why. ``known`` holds the metrics of all replays so far, from which a plan can be resumed.
    """

    question: FleetQuestion
    options: tuple[Option, ...]
    limit_prices: tuple[LimitPrice, ...]
    rank_confidence: float | None
    problems: Mapping[str, str]
    known: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    @property
    def best(self) -> Option:
        """The cheapest option."""
        return self.options[0]

    def headline(self) -> str:
        """Summarises the plan in one sentence."""
        best = self.best
        text = best.headline()
        if len(self.options) > 1:
            second = self.options[1]
            price = "price unknown" if second.usd_per_h is None else f"${second.usd_per_h:,.2f}/h"
            share = self.rank_confidence
            sure = "" if share is None else f" (more expensive with probability {units.show(share, 'share', digits=2)})"
            more = f" ({second.about_margin})" if second.pays_for_certainty else ""
            text += f". Next best: {second.label} at {price}{sure}{more}"
        return f"{text}; first bottleneck: {best.bottleneck} at {units.number(best.saturation_per_s)} requests/s."

    def rows(self) -> list[Mapping[str, object]]:
        """One row per option."""
        return [row for option in self.options for row in option.rows()]

    @property
    def front(self) -> list[Option]:
        """Pareto-optimal options: no other option is both cheaper and faster in P99 end-to-end latency."""
        kept: list[Option] = []
        for option in sorted((each for each in self.options if each.usd_per_h is not None), key=_by_price):
            if all(_slowest(option) < _slowest(other) for other in kept):
                kept.append(option)
        return kept

    def save(self, path: str | Path) -> None:
        """Writes the plan as a JSON file, which :func:`chipwise.design.fleet.plan_files.read_plan` reads.

        Raises:
            StorageError: The file cannot be written.
        """
        held = {"format": FORMAT, "answer": self.to_dict(), "known": plain(self.known)}
        write_output(Path(path), json.dumps(held, indent=1, allow_nan=False) + "\n")

    def to_dict(self) -> dict[str, object]:
        """All fields except ``known``, in SI units; prices are in dollars per hour or per million tokens."""
        found: dict[str, object] = dict(plain(replace(self, known={})))
        found.pop("known", None)
        return {"headline": self.headline(), **found}


def _pool_label(where: Arrangement, replicas: int, devices: int) -> str:
    several = f", {replicas} replicas" if replicas > 1 and devices != replicas else ""
    return f"{instances.counted(where.device, devices)}, {where.spread}{several}"


def _by_price(option: Option) -> float:
    return option.usd_per_h or 0.0


def _slowest(option: Option) -> float:
    return option.times["e2e_p99"].value if "e2e_p99" in option.times else 0.0


def planned(
    question: FleetQuestion,
    *,
    known: Mapping[str, Mapping[str, float]] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    on_known: Callable[[Mapping[str, Mapping[str, float]]], None] | None = None,
) -> FleetPlan:
    """Searches for the cheapest fleets that meet the question's limits, and returns the plan.

    Args:
        question: The question.
        known: Metrics of earlier replays, which are not repeated.
        on_progress: Called with the number of evaluated arrangements and of all arrangements.
        on_known: Called regularly with the metrics of the replays so far.

    Raises:
        Infeasible: No fleet meets the limits; the message says how close the closest fleet comes to each broken limit.
        DoesNotFit: The model fits on none of the devices.
    """

    def progress(done: int, total: int) -> None:
        if on_progress is not None:
            on_progress(done, total)
        if on_known is not None and finder is not None and done % 10 == 0:
            on_known(finder.evaluator.known)

    finder: Finder | None = None
    finder = Finder(question, known=known, on_progress=progress)
    limits = limits_of(question)
    if not finder.candidates:
        raise Infeasible(_nothing_fits(finder) + _reasons(finder, limits))
    fleets = finder.found(limits)
    if not fleets:
        raise Infeasible(_nothing_holds(finder, limits) + _reasons(finder, limits))
    options = tuple(_option(finder, fleet, limits) for fleet in fleets)
    if price_order(fleets[0]) == float("inf"):
        sure = None
    else:
        sure = finder.rank_confidence(fleets[0], fleets[1], limits, seed=question.seed) if len(fleets) > 1 else None
    return FleetPlan(
        question=question,
        options=options,
        limit_prices=tuple(_limit_prices(finder, fleets[0], limits)),
        rank_confidence=sure,
        problems=finder.problems,
        known=finder.evaluator.known,
        left_out=left_out(finder, fleets, limits),
        notes=(*taken_for(question.model), *([pause] if (pause := finder.evaluator.load(1).silence()) else [])),
    )


def _reasons(finder: Finder, limits: Mapping[str, float]) -> str:
    """Says for each device that the question names why it has no fleet within the limits, for the error message."""
    if len(finder.question.devices) < 2:
        return ""
    return "".join(f". {each.device}: {each.reason}" for each in left_out(finder, (), limits))


def _nothing_fits(finder: Finder) -> str:
    problems = list(dict.fromkeys(finder.problems.values()))
    more = f" ({len(problems) - 1} other reasons)" if len(problems) > 1 else ""
    return f"no arrangement can run {finder.question.model}: {problems[0] if problems else 'none is allowed'}{more}"


def _nothing_holds(finder: Finder, limits: Mapping[str, float]) -> str:
    """Says which limits cannot be met, and how close the closest fleet comes to them."""
    question = finder.question
    sure = f"with probability {units.show(question.confidence, 'share')}"
    closest = finder.closest(limits)
    if closest is None:
        needed = min(
            (finder.holding.least_replicas(each, finder.z) * each.arrangement.devices, each.arrangement.device)
            for each in finder.candidates
        )
        allowed = []
        if question.power_w is not None:
            allowed.append(f"{units.show(question.power_w, 'power')} of power")
        if question.usd_per_s is not None:
            allowed.append(f"{units.show(question.usd_per_s, 'price_rate')}")
        allowed.append(counted(question.most_devices, "device"))
        return (
            f"no fleet within {', '.join(allowed)} serves {units.number(finder.evaluator.rate_per_s)} requests/s; at "
            f"least {needed[0]:,} x {needed[1]} are needed"
        )
    fleet, _, metrics = closest
    broken = broken_limits(limits, metrics, finder.holding.metrics(fleet, 0.0), question.confidence)
    label = fleet.label
    if not broken:
        return f"no arrangement meets the limits {sure} within the devices, power and budget allowed; closest: {label}"
    return f"no arrangement meets {' and '.join(broken)} {sure}; the closest is {label}"


def _option(finder: Finder, fleet: Fleet, limits: Mapping[str, float]) -> Option:
    candidate, evaluator, holding = fleet.candidate, finder.evaluator, finder.holding
    where = candidate.arrangement
    middle, low, high = (holding.metrics(fleet, z) for z in (0.0, -Z90, Z90))
    predicted = {
        name: Predicted(value=value, low=min(low[name], value), high=max(high[name], value))
        for name, value in middle.items()
        if ":" in name or name.partition("_")[0] in MEASURES
    }
    price, load = fleet.usd_per_s, evaluator.load(1)
    share = _reading_share(fleet, middle["reading"])
    inputs, outputs = usd_per_million(price, load, requests_per_s=evaluator.rate_per_s, reading_share=share)
    full, bottleneck = _saturation(finder, fleet)
    commands, deployment = _serving(finder, fleet)
    needed = _needed(finder, fleet, limits)
    needed_usd_per_s = None if needed is None else needed.usd_per_s
    return Option(
        **{name: getattr(where.deployment, name) for name in DEPLOYED},
        speculation=where.speculation,
        replicas=fleet.replicas,
        devices=fleet.replicas * where.devices,
        kind=fleet.kind,
        second=_second(fleet),
        usd_per_h=None if price is None else 3600 * price,
        usd_per_million_input_tokens=inputs,
        usd_per_million_output_tokens=outputs,
        joules_per_output_token=_joules(fleet, finder, middle["in_flight"]),
        board_power_w=fleet.power_w,
        chance=holding.chance(fleet, limits),
        times={name: value for name, value in predicted.items() if ":" not in name},
        class_times={name: value for name, value in predicted.items() if ":" in name},
        in_flight=middle["in_flight"],
        busy_share=middle["busy"],
        saturation_per_s=full,
        bottleneck=bottleneck,
        provenance="; ".join(dict.fromkeys(each.copy.table.provenance for each, _ in fleet.pools)),
        commands=commands,
        deployment=deployment,
        needed_devices=None if needed is None else needed.devices,
        needed_usd_per_h=None if needed_usd_per_s is None else 3600 * needed_usd_per_s,
    )


def _needed(finder: Finder, fleet: Fleet, limits: Mapping[str, float]) -> Fleet | None:
    """The cheapest fleet that would be enough without prediction error; None if the confidence is at most 50 %."""
    if finder.z <= 0:
        return None
    if fleet.second is None:
        return finder.needed(fleet.candidate.arrangement.device, limits)
    return finder.needed_of_two(fleet, limits)


def _reading_share(fleet: Fleet, share: float) -> float:
    """Share of a fleet's price that is charged to prefill; with separate pools, the prefill pool's share."""
    if fleet.kind != "apart":
        return share
    return (fleet.candidate.usd_per_s_of(fleet.replicas) or 0.0) / (fleet.usd_per_s or 1.0)


def _second(fleet: Fleet) -> SecondPool | None:
    if fleet.second is None:
        return None
    where = fleet.second.arrangement
    return SecondPool(arrangement=where, replicas=fleet.seconds, devices=fleet.seconds * where.devices)


def _saturation(finder: Finder, fleet: Fleet) -> tuple[float, str]:
    """Requests per second at which a fleet is saturated, and the resource that limits it."""
    if fleet.kind == "apart":
        first, second = fleet.both
        parts = (("prefill", fleet.replicas, first.reading), ("decode", fleet.seconds, second.writing))
        full = [(count * part.requests_per_s, f"{name}: {part.bottleneck}") for name, count, part in parts if part]
        return min(full, key=lambda each: each[0])
    return fleet.replicas * fleet.candidate.full.requests_per_s, fleet.candidate.full.bottleneck


def _serving(finder: Finder, fleet: Fleet) -> tuple[tuple[str, ...], str]:
    """The commands that start a fleet; for separate prefill and decode instead the text of a deployment file."""
    model, candidate = finder.question.model, fleet.candidate
    if fleet.kind == "apart":
        return (), dynamo_yaml(model, *((each.arrangement, count) for each, count in fleet.pools))
    found = commands_of(
        model, candidate.arrangement, fleet.replicas, candidate.copy.policy, finder.longest,
        context=finder.evaluator.context,
    )  # fmt: skip
    return tuple(found), ""


def _joules(fleet: Fleet, finder: Finder, in_flight: float) -> float | None:
    """Joules per output token; None for separate prefill and decode, whose energy is not modelled."""
    if fleet.kind == "apart":
        return None
    batch = max(round(in_flight * fleet.candidate.copy.lanes), 1)
    return joules_per_token([replace(fleet.candidate.arrangement.request(finder.question), batch=batch)])


def _limit_prices(finder: Finder, best: Fleet, limits: Mapping[str, float]) -> list[LimitPrice]:
    """What each limit costs: how much cheaper a fleet of one pool could be without this limit."""
    found = []
    for name in limits:
        rest = {other: value for other, value in limits.items() if other != name}
        cheapest = best
        for candidate in finder.candidates:
            bound = finder.holding.bound_usd_per_s(candidate, finder.z)
            if candidate.usd_per_s is None or bound >= price_order(cheapest):
                continue
            most = int(price_order(cheapest) / candidate.usd_per_s - 1e-9)
            most = min(most, finder.holding.most_replicas(candidate))
            replicas = finder.holding.fewest(candidate, finder.z, rest, most=most)
            if replicas is not None and replicas * candidate.usd_per_s < price_order(cheapest):
                cheapest = Fleet(candidate=candidate, replicas=replicas)
        saved = None
        if best.usd_per_s is not None and cheapest.usd_per_s is not None:
            saved = 3600 * (best.usd_per_s - cheapest.usd_per_s)
        found.append(LimitPrice(limit=name, without=cheapest.label, saved_usd_per_h=saved))
    return found
