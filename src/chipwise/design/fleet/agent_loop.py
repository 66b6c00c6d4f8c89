"""An agent's loop (perceive, think, act): the cost of one turn on its devices, and what fits into its time budget.

A turn runs its parts one after another, each some number of times: a model that reads images or text and generates, or
a fixed time (a tool, a motor) that the user measured. If a turn takes too long, each part's alternatives are tried.
Each part's row says how many new tokens or calls would fit if nothing else changed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.core import units
from chipwise.core.arrays import Float64Array
from chipwise.core.fields import check_fields, positive, whole_number
from chipwise.core.files import build, read_yaml
from chipwise.core.results import Result
from chipwise.design.fleet.turns import MOST_TRIES, drawn_turns, log_normal
from chipwise.errors import ChipwiseError, SpecError
from chipwise.predict.cost.model import Predicted, combined
from chipwise.predict.cost.request import request_total
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.estimate import estimates
from chipwise.predict.served.request import Request, taken_for

CHOICES = ("model", "device", "runtime", "weights", "images", "image_size", "new", "calls", "parallel")
MOST_TRIED = 5_000  # combinations of alternatives
MOST_S = 1e9  # upper limit for a measured part: 30 years


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopPart:
    """One part of a turn: a model with the tokens of each call, or a measured time.

    ``instead`` lists alternative values by field, in order of preference: ``{weights: [int4], model:
    [Qwen/Qwen3-1.7B]}``.
    """

    name: str
    model: str | None = None
    device: str | None = None  # default: the loop's device
    runtime: str | None = None
    weights: str | None = None
    images: int = 0  # images per call
    image_size: str = "1024x768"
    prompt: int = 1
    cached: int = 0  # prompt tokens that stay in the KV cache from turn to turn
    new: int = 1
    calls: int = 1  # calls per turn
    parallel: int = 1  # calls that run at once; the turn waits for the slowest of them
    retry: str | float = 0.0  # probability that a call fails and is made again, such as 5 %
    time: str | None = None  # time of a part without a model, such as 20 ms
    time_p99: str | None = None  # its P99; without it, this part takes the same time in every turn
    instead: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        if (self.model is None) == (self.time is None):
            raise SpecError("a part needs either a model or a measured time", field="model")
        positive(self, "prompt", "new", "calls", "parallel")
        if self.parallel > self.calls:
            raise SpecError(f"must be at most calls ({self.calls}), not {self.parallel}", field="parallel")
        if not 0 <= self.retry_share < 1:
            raise SpecError(f"must be at least 0 % and below 100 %, not {self.retry!r:.40}", field="retry")
        if self.spreads and self.calls / (1 - self.retry_share) > MOST_TRIES:
            raise SpecError(f"with parallel or retry at most {MOST_TRIES:.0f} tries are expected", field="calls")
        for name in ("images", "cached"):
            whole_number(name, getattr(self, name), least=0)
        if self.time is not None:
            seconds = units.parse_field(self.time, "time", "time")
            if not 0 < seconds <= MOST_S:
                raise SpecError(f"must be above zero and at most {MOST_S:,.0f} s, not {self.time!r:.40}", field="time")
        if self.time_p99 is not None:
            if self.time is None:
                raise SpecError("is the P99 of a measured time; give its median as time", field="time_p99")
            p99_s = units.parse_field(self.time_p99, "time", "time_p99")
            if not units.parse_field(self.time, "time", "time") <= p99_s <= MOST_S:
                raise SpecError(
                    f"must be at least the median of {self.time}, not {self.time_p99!r:.40}", field="time_p99"
                )
        for name, values in self.instead.items():
            if name not in CHOICES or (self.time is not None and name not in ("calls", "parallel")):
                raise SpecError(
                    f"cannot have alternatives; these fields can: {', '.join(CHOICES)}", field=f"instead.{name}"
                )
            if not isinstance(values, list) or not values:
                raise SpecError("must be a list of values", field=f"instead.{name}")
            for i, value in enumerate(values):
                try:
                    self._with({name: value})
                except SpecError as error:
                    raise SpecError(error.message, field=f"instead.{name}[{i}]") from None

    @property
    def retry_share(self) -> float:
        """Probability that a call fails and is made again."""
        return units.parse_field(self.retry, "share", "retry")

    @property
    def spreads(self) -> bool:
        """Whether calls run at once or are made again, so that their distribution decides how long a turn is."""
        return self.parallel > 1 or self.retry_share > 0

    def variants(self) -> list[tuple[int, LoopPart]]:
        """The part and its alternatives, each with its number of steps in the order of preference."""
        options = [[getattr(self, name), *values] for name, values in self.instead.items()]
        found = []
        for places in itertools.product(*(range(len(values)) for values in options)):
            chosen = {name: values[i] for name, values, i in zip(self.instead, options, places, strict=True)}
            found.append((sum(places), self._with(chosen)))
        return found

    def _with(self, chosen: Mapping[str, object]) -> LoopPart:
        """A copy of the part with other values of some fields and without alternatives."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "instead"}
        return build(LoopPart, {**fields, **chosen})

    def describe(self) -> str:
        """The part in words: its model, formats and device."""
        if self.time is not None:
            return "a measured time"
        parts = [str(self.model), self.weights or "", f"on {self.device}"]
        if self.images:
            parts.append(f"{self.images} x {self.image_size}")
        return " ".join(part for part in (*parts, f"{self.prompt}+{self.new} tokens") if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLoop:
    """A loop as stated in its file. ``budget`` is for one turn; ``device`` is the default for its parts."""

    parts: tuple[LoopPart, ...]
    budget: str
    name: str = "agent"
    device: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.parts:
            raise SpecError("a loop has at least one part", field="parts")
        names = [part.name for part in self.parts]
        if len(set(names)) < len(names):
            raise SpecError("parts need different names", field="parts")
        filled = []
        for i, part in enumerate(self.parts):
            if part.model is not None and part.device is None and self.device is None:
                raise SpecError("name a device, for the loop or for the part", field=f"parts[{i}].device")
            filled.append(part if part.model is None or part.device else replace(part, device=self.device))
        object.__setattr__(self, "parts", tuple(filled))
        if self.budget_s <= 0:
            raise SpecError("must be above zero", field="budget")

    @property
    def budget_s(self) -> float:
        """The budget in seconds."""
        return units.parse_field(self.budget, "time", "budget")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCost:
    """Seconds of a part in one turn; for a model also its time to first token and time per token."""

    part: LoopPart
    turn_s: Predicted
    ttft_s: float | None = None
    tpot_s: float | None = None
    above_s: Predicted = field(
        default_factory=lambda: Predicted(value=0.0, low=0.0, high=0.0)
    )  # P99 less P50, in a turn

    def new_within(self, seconds: float) -> int | None:
        """New tokens per call that can be generated in this time; None for parts that do not generate."""
        if self.ttft_s is None or self.tpot_s is None or not self.tpot_s:
            return None
        each = seconds * request_total(self.ttft_s, self.tpot_s, self.part.new) / self.turn_s.value
        return 0 if each < self.ttft_s else 1 + math.floor((each - self.ttft_s) / self.tpot_s + 1e-9)

    def calls_within(self, seconds: float) -> int:
        """Calls that fit into a time."""
        return max(0, math.floor(seconds / (self.turn_s.value / self.part.calls) + 1e-9))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoopCost(Result):
    """Cost of one turn by part, and what would fit.

    ``fitting`` are the alternatives with the fewest changes that make a turn fit; empty if it fits unchanged, or if
    nothing fits (``least`` is then the fastest turn found).
    """

    loop: AgentLoop
    parts: tuple[PartCost, ...]
    total: Predicted
    fits: bool
    fitting: tuple[PartCost, ...] = ()
    least: tuple[PartCost, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def p99_s(self) -> Predicted:
        """P99 of a turn in seconds. Parts vary independently, so what their P99s add to their medians adds in squares.

        It is less than the sum of the parts' P99s, which would need all of them to be slow in the same turn.
        """
        above = combined(lambda *each: math.hypot(*each), *(cost.above_s for cost in self.parts))
        return combined(lambda seconds, more: seconds + more, self.total, above)

    @property
    def largest(self) -> PartCost:
        """The part that takes most of the turn."""
        return max(self.parts, key=lambda cost: cost.turn_s.value)

    def room_s(self, cost: PartCost) -> float:
        """Seconds of the budget that remain for this part."""
        return self.loop.budget_s - (self.total.value - cost.turn_s.value)

    def headline(self) -> str:
        """Compares the turn with its budget and names the part that takes most of it."""
        shown = units.span(self.total.value, self.total.low, self.total.high, "time")
        held = "fits" if self.fits else "does not fit"
        share = units.show(self.largest.turn_s.value / self.total.value, "share", digits=2)
        budget = units.show(self.loop.budget_s, "time")
        p99 = self.p99_s
        tail = f"P99 {units.span(p99.value, p99.low, p99.high, 'time')}"
        return f"a turn takes {shown}, {tail}, and {held} into {budget}; {self.largest.part.name} takes {share} of it"

    def rows(self) -> list[Mapping[str, object]]:
        """One row per part."""
        return [
            {
                "part": cost.part.name,
                "what": cost.part.describe(),
                "calls": cost.part.calls,
                "turn_s": cost.turn_s.value,
                "low_s": cost.turn_s.low,
                "high_s": cost.turn_s.high,
                "share": cost.turn_s.value / self.total.value,
                "new_that_fit": cost.new_within(self.room_s(cost)),
                "calls_that_fit": cost.calls_within(self.room_s(cost)),
            }
            for cost in self.parts
        ]


def read_loop(path: Path) -> AgentLoop:
    """Reads a loop from a YAML file.

    Raises:
        SpecError: A field is unknown, missing or wrong.
    """
    return build(AgentLoop, read_yaml(path), file=str(path))


def price_loop(loop: AgentLoop) -> LoopCost:
    """Prices one turn, and searches for changes that fit if it takes too long.

    Times of parts are added, and so are the ends of their intervals, since errors of one cost model are correlated. If
    a part has no interval, the turn has none.

    Raises:
        ChipwiseError: A part cannot be priced; the message names it.
    """
    costs = _costs(loop.parts)
    for part, cost in zip(loop.parts, costs, strict=True):
        if isinstance(cost, ChipwiseError):
            raise SpecError(str(cost), field=f"parts.{part.name}") from None
    asked = tuple(cost for cost in costs if isinstance(cost, PartCost))
    total = combined(lambda *seconds: float(sum(seconds)), *(cost.turn_s for cost in asked))
    fits = total.value <= loop.budget_s
    said = [each for part in loop.parts if part.model is not None for each in taken_for(part.model, part.device)]
    found = LoopCost(loop=loop, parts=asked, total=total, fits=fits, notes=tuple(dict.fromkeys(said)))
    if fits or not any(part.instead for part in loop.parts):
        return found
    return _with_alternatives(found)


def _with_alternatives(found: LoopCost) -> LoopCost:
    """The alternatives with the fewest steps of preference that make a turn fit; among equal ones the slowest turn."""
    options: list[list[tuple[int, PartCost]]] = []
    notes = []
    for part in found.loop.parts:
        variants = part.variants()
        priced = _costs([variant for _, variant in variants])
        options.append(
            [(steps, cost) for (steps, _), cost in zip(variants, priced, strict=True) if isinstance(cost, PartCost)]
        )
        notes += [
            f"{variant.name}: {variant.describe()}: {cost}"
            for (_, variant), cost in zip(variants, priced, strict=True)
            if isinstance(cost, ChipwiseError)
        ]
    count = math.prod(map(len, options))
    if count > MOST_TRIED:
        raise SpecError(f"{count:,} combinations of alternatives; at most {MOST_TRIED:,} are tried", field="instead")
    best: tuple[tuple[int, float], tuple[PartCost, ...]] | None = None
    least: tuple[float, tuple[PartCost, ...]] | None = None
    for chosen in itertools.product(*options):
        costs = tuple(cost for _, cost in chosen)
        seconds = sum(cost.turn_s.value for cost in costs)
        if least is None or seconds < least[0]:
            least = (seconds, costs)
        rank = (sum(steps for steps, _ in chosen), -seconds)
        if seconds <= found.loop.budget_s and (best is None or rank < best[0]):
            best = (rank, costs)
    fitting = () if best is None else best[1]
    return replace(found, fitting=fitting, least=() if least is None else least[1], notes=(*found.notes, *notes))


def _costs(parts: Sequence[LoopPart]) -> list[PartCost | ChipwiseError]:
    """Cost of each part in a turn; models are priced together."""
    requests = [_request(part) for part in parts if part.model is not None]
    answers = iter(estimates(requests))
    costs: list[PartCost | ChipwiseError] = []
    for part in parts:
        if part.time is not None:
            each = units.parse_field(part.time, "time", f"parts.{part.name}.time")
            p99_s = each if part.time_p99 is None else units.parse_field(part.time_p99, "time", "time_p99")
            one, above = (Predicted(value=seconds, low=seconds, high=seconds) for seconds in (each, p99_s - each))
            turn_s, above_s = _of_turn(part, one, above)
            costs.append(PartCost(part=part, turn_s=turn_s, above_s=above_s))
            continue
        answer = next(answers)
        if isinstance(answer, ChipwiseError):
            costs.append(answer)
            continue
        first, after = answer.metrics["ttft_p50"], answer.metrics.get("tpot_p50")
        one = _call_s(part, first, after or Predicted(value=0.0, low=0.0, high=0.0))
        turn_s, above_s = _of_turn(part, one, _above_s(part, answer.metrics))
        tpot_s = None if after is None else after.value
        costs.append(PartCost(part=part, turn_s=turn_s, ttft_s=first.value, tpot_s=tpot_s, above_s=above_s))
    return costs


def _of_turn(part: LoopPart, one: Predicted, above: Predicted) -> tuple[Predicted, Predicted]:
    """Median seconds of all calls of a part in a turn, and what their P99 is above it, from the same of one call.

    Calls one after another add their medians, and in squares what is above. Where some run at once or are made again,
    turns are drawn from log-normal times of a call with its median and P99.
    """
    if not part.spreads:
        root = math.sqrt(part.calls)
        return combined(lambda each: part.calls * each, one), combined(lambda each: root * each, above)

    def percentile(share: float) -> Callable[[float, float], float]:
        return lambda p50_s, above_s: float(np.quantile(_turns(part, p50_s, p50_s + above_s), share))

    median, p99 = (combined(percentile(share), one, above) for share in (0.5, 0.99))
    return median, combined(lambda high, low: high - low, p99, median)


def _turns(part: LoopPart, p50_s: float, p99_s: float) -> Float64Array:
    draw = log_normal(p50_s, p99_s)
    return drawn_turns(draw, calls=part.calls, parallel=part.parallel, retry=part.retry_share, seed=0)


def _above_s(part: LoopPart, metrics: Mapping[str, Predicted]) -> Predicted:
    """Seconds by which the P99 of one call of a part exceeds its median."""
    weights = {"ttft": 1, "tpot": part.new - 1}
    known = [name for name in weights if f"{name}_p99" in metrics]

    def above(*p99s: float) -> float:
        each = (weights[name] * (p99 - metrics[f"{name}_p50"].value) for name, p99 in zip(known, p99s, strict=True))
        return math.hypot(*(max(seconds, 0.0) for seconds in each))

    return combined(above, *(metrics[f"{name}_p99"] for name in known))


def _call_s(part: LoopPart, prefill: Predicted, step: Predicted) -> Predicted:
    """Seconds of one call of a part."""
    return combined(lambda prefill_s, step_s: float(request_total(prefill_s, step_s, part.new)), prefill, step)


def _request(part: LoopPart) -> Request:
    width, _, height = part.image_size.partition("x")
    if not (width.isdigit() and height.isdigit()):
        raise SpecError(f"{part.image_size!r:.40} is not a width and height such as 1024x768", field="image_size")
    assert part.model is not None
    assert part.device is not None
    return Request(
        model=part.model,
        deployment=Deployment(device=part.device, runtime=part.runtime, weights=part.weights),
        batch=min(part.parallel, part.calls),
        images=part.images,
        image_size=(int(width), int(height)),
        prompt_tokens=part.prompt,
        cached_tokens=part.cached,
        new_tokens=part.new,
    )
