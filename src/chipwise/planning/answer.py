"""Plan: the answer, with a sentence first. Options by price, what each limit costs, how sure the ranking is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import NormalDist

from chipwise.core import units
from chipwise.core.digest import plain
from chipwise.core.errors import ChipwiseError, Infeasible, counted
from chipwise.core.results import Result
from chipwise.core.statistics import Z90
from chipwise.cost.model import Predicted
from chipwise.planning.evaluating import NODES
from chipwise.planning.finding import Finder, Fleet, limits_of, price_order
from chipwise.planning.question import Question
from chipwise.serve.energy import energies
from chipwise.serve.estimate import cost_of

SUREST = NormalDist().cdf(max(NODES)) - 1e-9  # no replay was made further out
SHOWN = ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99", "e2e_p50", "e2e_p99")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Option(Result):
    """One fleet that meets the limits. Times are predicted, in seconds, with 90 % intervals; dollars are list prices.

    ``chance`` is the probability that all limits hold; ``saturation_per_s`` the requests per second that it serves when
    it never lacks any, and ``bottleneck`` what it lacks then. Prices and energies that are unknown are None.
    """

    device: str
    runtime: str
    weights: str
    tp: int
    pp: int
    replicas: int
    devices: int
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

    @property
    def label(self) -> str:
        """Such as ``2 x l40s, TP 1, fp8``."""
        spread = f"TP {self.tp}" + (f", PP {self.pp}" if self.pp > 1 else "")
        several = f", {self.replicas} replicas" if self.replicas > 1 and self.devices != self.replicas else ""
        return f"{self.devices} x {self.device}, {spread}{several}, {self.weights.upper()}, {self.runtime}"

    def headline(self) -> str:
        """The option in a sentence."""
        parts = []
        for name, label in (("ttft_p99", "P99 TTFT"), ("tpot_p99", "P99 TPOT")):
            if name in self.times:
                each = self.times[name]
                shown = units.interval(each.value, each.low, each.high, "time")
                parts.append(f"{label} {units.show(each.value, 'time')} (90 %: {shown})")
        price = "price unknown" if self.usd_per_h is None else f"${self.usd_per_h:,.2f}/h"
        if self.usd_per_million_output_tokens is not None:
            price += f", {units.show(self.usd_per_million_output_tokens, 'price')} per million output tokens"
        least = "at least " if self.chance >= SUREST else ""
        held = f"meets the limits with probability {least}{units.show(self.chance, 'share', digits=2)}"
        return f"{self.label}: {', '.join(parts)}, {price}; {held}"

    def rows(self) -> list[Mapping[str, object]]:
        """One row."""
        return [
            {
                "option": self.label, "devices": self.devices, "usd_per_h": self.usd_per_h,
                **{name: item.value for name, item in self.times.items() if name in SHOWN},
                "chance": self.chance, "saturation_per_s": self.saturation_per_s, "bottleneck": self.bottleneck,
            }
        ]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitPrice:
    """What a limit costs: the cheapest fleet without it."""

    limit: str
    without: str
    saved_usd_per_h: float | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Plan(Result):
    """The answer to a question: options by price, cheapest first, those of unknown price last.

    ``rank_confidence`` is the probability that the first is cheaper than the second, the errors of both considered.
    ``known`` are the replays made, so that a plan can be resumed.
    """

    question: Question
    options: tuple[Option, ...]
    limit_prices: tuple[LimitPrice, ...]
    rank_confidence: float | None
    problems: Mapping[str, str]
    known: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def best(self) -> Option:
        """The cheapest option."""
        return self.options[0]

    def headline(self) -> str:
        """The answer in a sentence."""
        best = self.best
        text = best.headline()
        if len(self.options) > 1:
            second = self.options[1]
            price = "price unknown" if second.usd_per_h is None else f"${second.usd_per_h:,.2f}/h"
            share = self.rank_confidence
            sure = "" if share is None else f" (more expensive in {units.show(share, 'share', digits=2)} of draws)"
            text += f". Next best: {second.label} at {price}{sure}"
        return f"{text}; first bottleneck: {best.bottleneck} at {units.number(best.saturation_per_s)} requests/s."

    def rows(self) -> list[Mapping[str, object]]:
        """One row an option."""
        return [row for option in self.options for row in option.rows()]

    @property
    def front(self) -> list[Option]:
        """The options that no other beats in both price and P99 of the end-to-end time."""
        kept: list[Option] = []
        for option in sorted((each for each in self.options if each.usd_per_h is not None), key=_by_price):
            if all(_slowest(option) < _slowest(other) for other in kept):
                kept.append(option)
        return kept

    def save(self, path: str | Path) -> None:
        """Writes the plan as a JSON file, which :func:`chipwise.planning.plan_files.read_plan` reads.

        Raises:
            StorageError: The file cannot be written.
        """
        from chipwise.planning.plan_files import write_plan

        write_plan(self, Path(path))

    def to_dict(self) -> dict[str, object]:
        """Everything but the replays, as plain values; SI units but for dollars an hour and a million tokens."""
        found: dict[str, object] = dict(plain(replace(self, known={})))
        found.pop("known", None)
        return {"headline": self.headline(), **found}


def _by_price(option: Option) -> float:
    return option.usd_per_h or 0.0


def _slowest(option: Option) -> float:
    return option.times["e2e_p99"].value if "e2e_p99" in option.times else 0.0


def planned(
    question: Question,
    *,
    known: Mapping[str, Mapping[str, float]] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    on_known: Callable[[Mapping[str, Mapping[str, float]]], None] | None = None,
) -> Plan:
    """The plan for ``question``.

    Args:
        question: What is asked.
        known: Of replays made before.
        on_progress: Called with arrangements looked at and their number.
        on_known: Called with the replays made so far, now and then.

    Raises:
        Infeasible: Nothing meets the limits; names them with the closest values.
        DoesNotFit: The model fits on none of the devices.
    """

    def progress(done: int, total: int) -> None:
        if on_progress is not None:
            on_progress(done, total)
        if on_known is not None and done % 10 == 0:
            on_known(finder.evaluator.known)

    finder = Finder(question, known=known, on_progress=progress)
    limits = limits_of(question)
    if not finder.candidates:
        raise Infeasible(_nothing_fits(finder))
    fleets = finder.found(limits)
    if not fleets:
        raise Infeasible(_nothing_holds(finder, limits))
    options = tuple(_option(finder, fleet, limits) for fleet in fleets)
    if price_order(fleets[0]) == float("inf"):
        sure = None
    else:
        sure = finder.rank_confidence(fleets[0], fleets[1], limits, seed=question.seed) if len(fleets) > 1 else None
    return Plan(
        question=question,
        options=options,
        limit_prices=tuple(_limit_prices(finder, fleets[0], limits)),
        rank_confidence=sure,
        problems=finder.problems,
        known=finder.evaluator.known,
    )


def _nothing_fits(finder: Finder) -> str:
    problems = list(dict.fromkeys(finder.problems.values()))
    more = f" ({len(problems) - 1} other reasons)" if len(problems) > 1 else ""
    return f"no arrangement can run {finder.question.model}: {problems[0] if problems else 'none is allowed'}{more}"


def _nothing_holds(finder: Finder, limits: Mapping[str, float]) -> str:
    """Which limits nothing meets, and how near the closest arrangement comes."""
    question = finder.question
    sure = f"with probability {units.show(question.confidence, 'share')}"
    closest = finder.closest(limits)
    if closest is None:
        needed = min(
            (finder.least_replicas(each, finder.z) * each.arrangement.devices, each.arrangement.device)
            for each in finder.candidates
        )
        allowed = []
        if question.power_w is not None:
            allowed.append(f"{units.show(question.power_w, 'power')} of power")
        if question.usd_per_s is not None:
            allowed.append(f"{units.show(question.usd_per_s, 'price_rate')}")
        allowed.append(counted(question.most_devices, "device"))
        return (
            f"no fleet within {', '.join(allowed)} serves {units.number(finder.evaluator.rate_per_s)} requests/s; the "
            f"fewest devices that would are {needed[0]:,} x {needed[1]}"
        )
    fleet, _, metrics = closest
    broken = [
        f"{name} <= {units.show(limit, 'time')} (closest: {units.show(metrics[name], 'time')})"
        for name, limit in limits.items()
        if metrics.get(name, 0.0) > limit
    ]
    where = fleet.candidate.arrangement
    label = f"{fleet.devices} x {where.device}, TP {where.tp}, {where.weights}, {where.runtime}"
    if not broken:
        return f"no arrangement meets the limits {sure} within the devices, power and budget allowed; closest: {label}"
    return f"no arrangement meets {' and '.join(broken)} {sure}; the closest is {label}"


def _option(finder: Finder, fleet: Fleet, limits: Mapping[str, float]) -> Option:
    from chipwise.planning.serving_commands import commands_of

    candidate, evaluator = fleet.candidate, finder.evaluator
    where = candidate.arrangement
    middle, low, high = (evaluator.metrics(candidate, fleet.replicas, z) for z in (0.0, -Z90, Z90))
    times = {
        name: Predicted(value=value, low=min(low[name], value), high=max(high[name], value))
        for name, value in middle.items()
        if name.partition("_")[0] in ("ttft", "tpot", "e2e", "queue") and ":" not in name
    }
    class_times = {
        name: Predicted(value=value, low=min(low[name], value), high=max(high[name], value))
        for name, value in middle.items()
        if ":" in name
    }
    load = evaluator.load(1)
    rate = evaluator.rate_per_s
    read, written = float(load.prompt_tokens.mean()), float(load.new_tokens.mean())
    price = fleet.usd_per_s
    inputs = outputs = None
    if price is not None:
        share = middle["reading"]
        inputs = 1e6 * price * share / (rate * read)
        outputs = 1e6 * price * (1 - share) / (rate * written) if written else None
    power = candidate.device.board_power
    return Option(
        device=where.device,
        runtime=where.runtime,
        weights=where.weights,
        tp=where.tp,
        pp=where.pp,
        replicas=fleet.replicas,
        devices=fleet.devices,
        usd_per_h=None if price is None else 3600 * price,
        usd_per_million_input_tokens=inputs,
        usd_per_million_output_tokens=outputs,
        joules_per_output_token=_joules(fleet, finder, middle["in_flight"]),
        board_power_w=None if power is None else power.number * fleet.devices,
        chance=finder.chance(fleet, limits),
        times=times,
        class_times=class_times,
        in_flight=middle["in_flight"],
        busy_share=middle["busy"],
        saturation_per_s=candidate.capacity_per_s * fleet.replicas,
        bottleneck=candidate.bottleneck,
        provenance=candidate.copy.table.provenance,
        commands=commands_of(finder.question.model, where, fleet.replicas, candidate.copy.policy, finder.longest),
    )


def _joules(fleet: Fleet, finder: Finder, in_flight: float) -> float | None:
    """Joules of all devices for one output token, the prompt's share included; None where watts are unknown."""
    where = fleet.candidate.arrangement
    request = replace(
        where.request(finder.question), batch=max(round(in_flight * fleet.candidate.copy.lanes), 1)
    )  # fmt: skip
    try:
        cost = cost_of(request)
        found = energies([cost])[0]
    except ChipwiseError:
        return None
    return None if isinstance(found, ChipwiseError) else float(found.token_j[0])


def _limit_prices(finder: Finder, best: Fleet, limits: Mapping[str, float]) -> list[LimitPrice]:
    """What the best fleet's arrangement and its device's others would cost without each limit."""
    found = []
    for name in limits:
        rest = {other: value for other, value in limits.items() if other != name}
        cheapest = best
        for candidate in finder.candidates:
            bound = finder.bound_usd_per_s(candidate)
            if candidate.usd_per_s is None or bound >= price_order(cheapest):
                continue
            most = int(price_order(cheapest) / candidate.usd_per_s - 1e-9)
            replicas = finder.fewest(candidate, finder.z, rest, most=min(most, finder.most_replicas(candidate)))
            if replicas is not None and replicas * candidate.usd_per_s < price_order(cheapest):
                cheapest = Fleet(candidate=candidate, replicas=replicas)
        saved = None
        if best.usd_per_s is not None and cheapest.usd_per_s is not None:
            saved = 3600 * (best.usd_per_s - cheapest.usd_per_s)
        where = cheapest.candidate.arrangement
        label = f"{cheapest.devices} x {where.device}, TP {where.tp}, {where.weights}"
        found.append(LimitPrice(limit=name, without=label, saved_usd_per_h=saved))
    return found
