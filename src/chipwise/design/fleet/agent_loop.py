"""Predicts the time of one turn of an agent's loop (perceive, think, act), and what fits into the turn's time budget.

A turn runs its parts one after another; a part may make several calls. A part is either a model that reads images or
text and generates tokens, or a tool or motor whose time the user measured. P50 and P99 of a turn are computed from
simulated turns in which every call takes a random time (and, with speculative decoding, a random number of steps). Sums
over the parts would be wrong: the sum of medians is too low if times have long tails, and the sum of P99s is too high.
If a turn takes too long, the alternatives of its parts are tried. The result has one row per part, which says how many
new tokens or calls would fit if nothing else changed, and one line that says which part to move to which chip.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.core import units
from chipwise.core.arrays import Float64Array
from chipwise.core.fields import check_fields, positive, whole_number
from chipwise.core.files import build, read_yaml
from chipwise.core.results import Result
from chipwise.design.fleet.turns import MOST_TRIES, TURNS, drawn_turns, in_steps, log_normal
from chipwise.errors import ChipwiseError, SpecError, UnknownName
from chipwise.predict.cost.model import Predicted, combined
from chipwise.predict.cost.request import request_total
from chipwise.predict.load.fleet import replica
from chipwise.predict.load.policy import Policy, Speculation
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.estimate import estimates
from chipwise.predict.served.request import THAT_SEES, Request, taken_for

CHOICES = ("model", "device", "runtime", "weights", "images", "image_size", "new", "calls", "parallel", "draft")
TO_GENERATE = f"leave out the field new, or name a model that generates tokens, such as {THAT_SEES}, which reads images"
MOST_TRIED = 5_000  # most combinations of alternatives
MOST_S = 1e9  # most seconds of a measured part: 30 years


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopPart:
    """One part of a turn: either a model and its tokens per call, or a tool and its measured time.

    ``instead`` maps names of other fields to lists of alternative values, most preferred first, such as ``{weights:
    [int4], model: [Qwen/Qwen3-1.7B]}``.
    """

    name: str
    model: str | None = None
    device: str | None = None  # default: the device of the loop
    runtime: str | None = None
    weights: str | None = None
    images: int = 0  # images per call
    image_size: str = "1024x768"
    prompt: int = 1
    cached: int = 0  # prompt tokens that stay in the KV cache from turn to turn
    new: int = 1
    draft: str | None = None  # speculative decoding: MODEL:TOKENS:ACCEPTANCE, or ngram:TOKENS:ACCEPTANCE
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
        if self.speculation is not None and (self.time is not None or self.new == 1):
            raise SpecError("applies only to generating models: set the fields model and new (above 1)", field="draft")
        if self.parallel > self.calls:
            raise SpecError(
                f"must be at most {self.calls}, the value of `calls`, not {self.parallel}", field="parallel"
            )
        if not 0 <= self.retry_share < 1:
            raise SpecError(f"must be at least 0 % and below 100 %, not {self.retry!r:.40}", field="retry")
        if self.varies and self.calls / (1 - self.retry_share) > MOST_TRIES:
            raise SpecError(
                f"the expected calls and retries per turn must be at most {MOST_TRIES:.0f}; lower `calls` or `retry`",
                field="calls",
            )
        for name in ("images", "cached"):
            whole_number(name, getattr(self, name), least=0)
        if self.time is not None:
            seconds = units.parse_field(self.time, "time", "time")
            if not 0 < seconds <= MOST_S:
                raise SpecError(f"must be above zero and at most {MOST_S:,.0f} s, not {self.time!r:.40}", field="time")
        if self.time_p99 is not None:
            if self.time is None:
                raise SpecError("is a P99 and needs the median too; set the field time", field="time_p99")
            p99_s = units.parse_field(self.time_p99, "time", "time_p99")
            if not units.parse_field(self.time, "time", "time") <= p99_s <= MOST_S:
                raise SpecError(
                    f"must be at least the median, {self.time}, but is {self.time_p99!r:.40}", field="time_p99"
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
    def speculation(self) -> Speculation | None:
        """Settings of speculative decoding; None without a draft."""
        return None if self.draft is None else Speculation.read(self.draft)

    @property
    def retry_share(self) -> float:
        """Probability that a call fails and is repeated, as a number from 0 to 1."""
        return units.parse_field(self.retry, "share", "retry")

    @property
    def varies(self) -> bool:
        """Whether the time of this part differs between turns."""
        return self.model is not None or self.time_p99 is not None or self.retry_share > 0

    def variants(self) -> list[tuple[int, LoopPart]]:
        """The part and its variants, each with a rank; the lower the rank, the more preferred the variant.

        The rank is the sum of the positions of the variant's values in the lists of ``instead``, counted from 1. A
        field that keeps the part's own value counts as 0.
        """
        options = [[getattr(self, name), *values] for name, values in self.instead.items()]
        found = []
        for places in itertools.product(*(range(len(values)) for values in options)):
            chosen = {name: values[i] for name, values, i in zip(self.instead, options, places, strict=True)}
            found.append((sum(places), self._with(chosen)))
        return found

    def _with(self, chosen: Mapping[str, object]) -> LoopPart:
        """A copy of the part with the fields in ``chosen`` replaced, and without alternatives."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "instead"}
        return build(LoopPart, {**fields, **chosen})

    def describe(self) -> str:
        """The part in words: its model, formats and device."""
        if self.time is not None:
            return "a measured time"
        parts = [str(self.model), self.weights or "", f"on {self.device}"]
        if self.images:
            parts.append(f"{self.images} x {self.image_size}")
        parts.append(f"{self.prompt}+{self.new} tokens")
        drafts = "" if self.speculation is None else f", {self.speculation.describe()} in each step"
        return " ".join(part for part in parts if part) + drafts


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLoop:
    """A loop as read from its file. ``budget`` is the time for one turn; ``device`` is the default device of its parts.

    A part may move to any device of the other parts, and to the devices in ``chips``.
    """

    parts: tuple[LoopPart, ...]
    budget: str
    name: str = "agent"
    device: str | None = None
    chips: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.parts:
            raise SpecError("must have at least one part", field="parts")
        names = [part.name for part in self.parts]
        if len(set(names)) < len(names):
            raise SpecError("two parts have the same name; give each part a different name", field="parts")
        filled = []
        for i, part in enumerate(self.parts):
            if part.model is not None and part.device is None and self.device is None:
                raise SpecError("this part has no device; set one here or for the loop", field=f"parts[{i}].device")
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
    """Seconds of one part per turn (P50 and P99); for a model also its median TTFT and TPOT."""

    part: LoopPart
    turn_s: Predicted
    p99_s: Predicted
    ttft_s: float | None = None
    tpot_s: float | None = None

    def new_within(self, seconds: float) -> int | None:
        """New tokens per call that fit if the part may take ``seconds`` per turn; None if it generates no tokens."""
        if self.ttft_s is None or self.tpot_s is None or not self.tpot_s:
            return None
        each = seconds * request_total(self.ttft_s, self.tpot_s, self.part.new) / self.turn_s.value
        return 0 if each < self.ttft_s else 1 + math.floor((each - self.ttft_s) / self.tpot_s + 1e-9)

    def calls_within(self, seconds: float) -> int:
        """How many calls fit if the part may take ``seconds`` per turn."""
        return max(0, math.floor(seconds / (self.turn_s.value / self.part.calls) + 1e-9))


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A move of one part to another device, and the time of a turn after this move."""

    part: str
    device: str
    total: Predicted
    p99_s: Predicted


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoopCost(Result):
    """Time of one turn and of each part. ``total`` is the median time of a turn, ``p99_s`` its P99.

    If the turn does not fit its budget, combinations of alternatives are tried. ``fitting`` holds the parts of the most
    preferred combination that fits; it is empty if the turn fits unchanged, or if no combination fits. ``least`` holds
    the parts of the fastest combination. ``changed_s`` is the median time of a turn with the parts in ``fitting``, or
    with those in ``least`` if ``fitting`` is empty. ``move`` is the move of one part to another device that gives the
    shortest median turn.
    """

    loop: AgentLoop
    parts: tuple[PartCost, ...]
    total: Predicted
    p99_s: Predicted
    fits: bool
    changed_s: float | None = None
    fitting: tuple[PartCost, ...] = ()
    least: tuple[PartCost, ...] = ()
    move: Move | None = None
    notes: tuple[str, ...] = ()

    @property
    def largest(self) -> PartCost:
        """The part that takes most of the turn's time."""
        return max(self.parts, key=lambda cost: cost.turn_s.value)

    def room_s(self, cost: PartCost) -> float:
        """Seconds of the budget that the other parts leave for this part."""
        return self.loop.budget_s - (self.total.value - cost.turn_s.value)

    def headline(self) -> str:
        """Compares the turn's time with the budget, and names the part that takes longest."""
        shown = units.span(self.total.value, self.total.low, self.total.high, "time")
        held = "fits" if self.fits else "does not fit"
        share = units.show(self.largest.turn_s.value / self.total.value, "share", digits=2)
        budget = units.show(self.loop.budget_s, "time")
        p99 = self.p99_s
        tail = f"P99 {units.span(p99.value, p99.low, p99.high, 'time')}"
        return f"a turn takes {shown}, {tail}, and {held} into {budget}; {self.largest.part.name} takes {share} of it"

    def to_move(self) -> str | None:
        """Says which part to move to which device; None if no move is possible."""
        if (move := self.move) is None:
            return None
        shown = units.span(move.total.value, move.total.low, move.total.high, "time")
        what = f"{move.part} to {move.device}: a turn then takes {shown}, P99 {units.show(move.p99_s.value, 'time')}"
        if move.total.value >= self.total.value:
            return f"move no part: the best move is {what}"
        held = "fits" if move.total.value <= self.loop.budget_s else "does not fit"
        return f"move {what}, and {held} into {units.show(self.loop.budget_s, 'time')}"

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
                "p99_s": cost.p99_s.value,
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
    """Predicts the time of one turn; if it exceeds the budget, searches for alternatives that make the turn fit.

    Parts run one after another, and their times vary independently. Errors of the cost model, however, are correlated
    between parts: for the lower end of the turn's interval, every part is at the lower end of its own interval, and
    likewise for the upper end. If a part has no interval, the turn has none.

    Raises:
        ChipwiseError: The time of a part cannot be predicted; the message names the part.
    """
    drawn = _drawn([(i, part) for i, part in enumerate(loop.parts)])
    for part, each in zip(loop.parts, drawn, strict=True):
        if isinstance(each, ChipwiseError):
            raise SpecError(str(each), field=f"parts.{part.name}") from None
    asked = [each for each in drawn if isinstance(each, _Drawn)]
    total, p99_s = _whole(asked)
    move, refused = _best_move(loop, asked)
    said = [each for part in loop.parts if part.model is not None for each in taken_for(part.model, part.device)]
    found = LoopCost(
        loop=loop,
        parts=tuple(each.cost for each in asked),
        total=total,
        p99_s=p99_s,
        fits=total.value <= loop.budget_s,
        move=move,
        notes=tuple(dict.fromkeys([*said, *refused])),
    )
    if found.fits or not any(part.instead for part in loop.parts):
        return found
    return _with_alternatives(found)


def _whole(parts: Sequence[_Drawn]) -> tuple[Predicted, Predicted]:
    """P50 and P99 of a turn with these parts, with intervals if every part has one."""
    turns = [sum(each) for each in zip(*(part.turns for part in parts), strict=False)]
    return _percentile(turns, 0.5), _percentile(turns, 0.99)


def _best_move(loop: AgentLoop, asked: Sequence[_Drawn]) -> tuple[Move | None, list[str]]:
    """The move of one part to another device that gives the shortest turn, and notes on moves that are impossible."""
    devices = dict.fromkeys([*loop.chips, *(part.device for part in loop.parts if part.device is not None)])
    moved = [
        (i, part._with({"device": device}))
        for i, part in enumerate(loop.parts)
        for device in devices
        if part.model is not None and device != part.device
    ]
    found, refused = [], []
    for (i, part), each in zip(moved, _drawn(moved), strict=True):
        if isinstance(each, UnknownName):
            raise SpecError(str(each), field="chips")
        if isinstance(each, ChipwiseError):
            refused.append(f"{part.name} cannot move to {part.device}: {each}")
            continue
        total, p99_s = _whole([*asked[:i], each, *asked[i + 1 :]])
        found.append(Move(part=part.name, device=str(part.device), total=total, p99_s=p99_s))
    return min(found, key=lambda move: move.total.value, default=None), refused


def _with_alternatives(found: LoopCost) -> LoopCost:
    """Tries all combinations of alternatives; adds the fastest one, and the most preferred one that makes the turn fit.

    If several combinations that fit are equally preferred, the slowest of them is added.
    """
    options: list[list[tuple[int, _Drawn]]] = []
    notes = []
    for i, part in enumerate(found.loop.parts):
        variants = part.variants()
        priced = _drawn([(i, variant) for _, variant in variants])
        options.append(
            [(steps, each) for (steps, _), each in zip(variants, priced, strict=True) if isinstance(each, _Drawn)]
        )
        notes += [
            f"{variant.name}: {variant.describe()}: {each}"
            for (_, variant), each in zip(variants, priced, strict=True)
            if isinstance(each, ChipwiseError)
        ]
    count = math.prod(map(len, options))
    if count > MOST_TRIED:
        raise SpecError(f"{count:,} combinations of alternatives; at most {MOST_TRIED:,} can be tried", field="instead")
    tried = [
        (float(np.median(sum(each.turns[0] for _, each in chosen))), sum(steps for steps, _ in chosen), chosen)
        for chosen in itertools.product(*options)
    ]
    least = min(tried, key=lambda one: one[0])
    inside = [one for one in tried if one[0] <= found.loop.budget_s]
    fitting = min(inside, key=lambda one: (one[1], -one[0]), default=None)
    return replace(
        found,
        fitting=() if fitting is None else tuple(each.cost for _, each in fitting[2]),
        least=tuple(each.cost for _, each in least[2]),
        changed_s=(fitting or least)[0],
        notes=(*found.notes, *notes),
    )


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A part's cost, and the part's seconds in each simulated turn.

    ``turns`` has one array (TURNS,) for the predicted value and one for each end of its interval. The arrays for the
    two ends are missing unless all of the part's times have an interval.
    """

    cost: PartCost
    turns: tuple[Float64Array, ...]


def _drawn(parts: Sequence[tuple[int, LoopPart]]) -> list[_Drawn | ChipwiseError]:
    """The times of each part, or why they are unknown. A part's index in the loop is its random seed."""
    answers = iter(estimates([_request(part) for _, part in parts if part.model is not None]))
    found: list[_Drawn | ChipwiseError] = []
    for place, part in parts:
        first = after = None
        if part.time is not None:
            times = [_measured(part.time), _measured(part.time_p99 or part.time)]
        else:
            answer = next(answers)
            if not isinstance(answer, ChipwiseError) and part.new > 1 and "tpot_p50" not in answer.metrics:
                answer = SpecError(
                    f"{part.model} computes its answer in one pass and generates no tokens; {TO_GENERATE}", field="new"
                )
            if isinstance(answer, ChipwiseError):
                found.append(answer)
                continue
            first, after = answer.ttft_s, answer.tpot_s if "tpot_p50" in answer.metrics else None
            times = _times(answer.metrics, part.new)
            if after is not None and (drafts := part.speculation) is not None:
                try:
                    read_s, longer = _drafting(part, drafts)
                except ChipwiseError as error:
                    found.append(error)
                    continue
                factors = [1 + read_s / first] * 2 + [longer / (part.new - 1)] * 2
                times = [combined(lambda s, by=by: by * s, each) for by, each in zip(factors, times, strict=True)]
                first, after = first + read_s, longer * after / drafts.tokens_per_step
        turns = tuple(_turns(part, ends, seed=place) for ends in zip(*map(_ends, times), strict=False))
        turn_s, p99_s = _percentile(turns, 0.5), _percentile(turns, 0.99)
        found.append(_Drawn(PartCost(part=part, turn_s=turn_s, p99_s=p99_s, ttft_s=first, tpot_s=after), turns))
    return found


def _measured(time: str) -> Predicted:
    seconds = units.parse_field(time, "time", "time")
    return Predicted(value=seconds, low=seconds, high=seconds)


def _times(metrics: Mapping[str, Predicted], new: int) -> list[Predicted]:
    """P50 and P99 of the prefill, then P50 and P99 of the time for all further tokens."""
    found = [metrics["ttft_p50"], metrics["ttft_p99"]]
    if new > 1 and "tpot_p50" in metrics:
        each = (metrics[name] for name in ("tpot_p50", "tpot_p99"))
        found += [combined(lambda step_s: (new - 1) * step_s, step) for step in each]
    return found


def _drafting(part: LoopPart, drafts: Speculation) -> tuple[float, float]:
    """The draft model's prefill seconds, and the time of a speculative step divided by that of a plain step."""
    request = _request(part)
    batch, chunk = request.batch, part.prompt - part.cached
    own = Policy(most_tokens=max(batch * max(chunk, drafts.drafted + 1), 256), most_sequences=batch)
    longest = part.prompt + part.new
    plain, drafting = (
        replica(request, policy=replace(own, speculation=each), longest=longest).table for each in (None, drafts)
    )
    reading = [(chunk, part.cached)] * batch
    read_s = drafting.mixed_s(0, 0, reading, ending=batch) - plain.mixed_s(0, 0, reading, ending=batch)
    context = part.prompt + part.new / 2
    return read_s, drafting.decode_s(batch, context) / plain.decode_s(batch, context)


def _ends(seconds: Predicted) -> tuple[float, ...]:
    """A prediction's value and both ends of its interval; only the value if there is no interval."""
    if seconds.low is None or seconds.high is None:
        return (seconds.value,)
    return (seconds.value, seconds.low, seconds.high)


def _turns(part: LoopPart, times: Sequence[float], *, seed: int) -> Float64Array:
    """A part's seconds in simulated turns, (TURNS,). An attempt takes the sum of independent log-normal times.

    Args:
        part: The part.
        times: P50 and P99 of each summand: ``[p50, p99, p50, p99]``. With speculative decoding, the second
            summand is the time of one step.
        seed: Random seed.
    """
    if not part.varies:
        return np.full(TURNS, math.ceil(part.calls / part.parallel) * times[0])
    draws = [log_normal(p50_s, max(p50_s, p99_s)) for p50_s, p99_s in zip(times[::2], times[1::2], strict=True)]
    if part.speculation is not None and len(draws) > 1:
        draws[1] = in_steps(draws[1], part.speculation, part.new - 1)
    return drawn_turns(draws, calls=part.calls, parallel=part.parallel, retry=part.retry_share, seed=seed)


def _percentile(turns: Sequence[Float64Array], share: float) -> Predicted:
    """Quantile of the turns' times at the probability ``share``.

    It has an interval if turns were also simulated at the ends of the interval.
    """
    return Predicted(
        **dict(zip(("value", "low", "high"), (float(np.quantile(each, share)) for each in turns), strict=False))
    )


def _request(part: LoopPart) -> Request:
    width, _, height = part.image_size.partition("x")
    if not (width.isdigit() and height.isdigit()):
        raise SpecError(f"{part.image_size!r:.40} is not a width x height such as 1024x768", field="image_size")
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
