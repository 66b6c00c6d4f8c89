"""Measured rows with the data sheet's predictions, as passes split by groups of operators."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from chipwise.core import units
from chipwise.core.arrays import Float64Array
from chipwise.core.statistics import Z90
from chipwise.errors import ChipwiseError, SpecError, Unsupported
from chipwise.hardware import datasheet
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.runtime import CORES, on_device, runtime_named
from chipwise.model.arch.arch import ArchSpec
from chipwise.predict.cost.request import request_total
from chipwise.predict.served import intervals
from chipwise.predict.served.batching import constants
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.groups import UNCHECKED_PROMPT, Group, Kernels, Seconds, grouped, time_groups
from chipwise.predict.served.request import Request
from chipwise.predict.served.steps import PassTimes
from chipwise.predict.served.taught_pass import PassSums
from chipwise.predict.served.taught_times import pass_sums

IMPOSSIBLE = 0.2
"""Of what the arithmetic takes at the fastest rate of the sheet, which may be of a base clock or lack units that are
not published (Apple's CPUs). A prompt found in a cache takes far less."""
PARTS = ("cpu", "gpu", "npu")  # of a chip, as variants name them
Quantity = Literal["ttft", "tpot", "total"]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """One row of a table: a model as it was run, and its times in seconds. ``context`` is the number of cached tokens
    before generation, where that is not the prompt.
    """

    number: int  # of the line in its file
    model: str | ArchSpec
    runtime: str | None = None
    weights: str | None = None
    kv: str | None = None
    batch: int = 1
    prompt_tokens: int = 512
    new_tokens: int = 128
    context: int | None = None
    variant: str = ""
    ttft_s: float | None = None
    tpot_s: float | None = None
    total_s: float | None = None

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model if isinstance(self.model, str) else self.model.name

    @property
    def identity(self) -> str:
        """Identity of the row's model."""
        return self.model if isinstance(self.model, str) else _digest_of(self.model)

    def sheet(self, device: DeviceProfile) -> DeviceProfile:
        """``device`` as the row ran on it: the part that its variant names, with the cores of its threads.

        >>> MeasuredRow(number=2, model="gpt2", variant="cpu/cpu").sheet(datasheet.load("apple-m3-max")).name
        'apple-m3-max:cpu'
        """
        words = self.variant.lower().split("/")
        part = next((word for word in words if word in PARTS), None)
        found = device if part is None else datasheet.with_part(device, part) or device
        threads = next((match for word in words if (match := re.fullmatch(r"(\d+) threads?", word))), None)
        if threads and self.runtime and on_device(runtime_named(self.runtime), found).stack == CORES:
            found = datasheet.with_cores(found, int(threads[1]))
        return found

    def measured(self) -> dict[Quantity, float]:
        """Measured quantities."""
        times: dict[Quantity, float | None] = {"ttft": self.ttft_s, "tpot": self.tpot_s, "total": self.total_s}
        return {name: value for name, value in times.items() if value is not None}

    def request(self, device: DeviceProfile, quantity: Quantity) -> Request:
        """The request that was run."""
        device = self.sheet(device)
        prompt = self.prompt_tokens
        if quantity == "tpot" and self.context is not None:
            prompt = max(1, self.context)
        return Request(
            model=self.model,
            deployment=Deployment(device=device, runtime=self.runtime, weights=self.weights, kv=self.kv),
            batch=self.batch,
            prompt_tokens=prompt,
            new_tokens=self.new_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Quantities that are sums of passes: ``seconds[i]`` is the sum of ``share[p] * pass p`` over p with ``owner`` i.

    Attributes:
        rows: Row of each quantity, (n,) indices.
        quantities: Which of a row's quantities, n names.
        models: Identity of each row's model, n names: rows of a model are left out together.
        seconds: Measured seconds, (n,); NaN for quantities to predict.
        sheet_s: Predictions of the data sheet, (n,).
        halfwidth: Of the data sheet's 90 % interval, in logarithms, (n,).
        owner: (p,)
        share: (p,) how often the quantity holds the pass.
        terms: (p, terms)
        labels: p tuples of names.
    """

    rows: Places
    quantities: tuple[str, ...]
    models: tuple[str, ...]
    seconds: Float64Array
    sheet_s: Float64Array
    halfwidth: Float64Array
    owner: Places
    share: Float64Array
    terms: Float64Array
    labels: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        return len(self.seconds)

    def only(self, chosen: Sequence[int] | Places) -> Observations:
        """Selects some of the quantities, in order."""
        kept = np.zeros(len(self), bool)
        kept[np.asarray(chosen, int)] = True
        places = np.cumsum(kept) - 1
        passes = np.flatnonzero(kept[self.owner])
        return replace(
            self,
            rows=self.rows[kept],
            quantities=tuple(np.asarray(self.quantities, object)[kept]),
            models=tuple(np.asarray(self.models, object)[kept]),
            seconds=self.seconds[kept],
            sheet_s=self.sheet_s[kept],
            halfwidth=self.halfwidth[kept],
            owner=places[self.owner[passes]],
            share=self.share[passes],
            terms=self.terms[passes],
            labels=tuple(self.labels[p] for p in passes),
        )

    def timed(self, seconds: Float64Array) -> Observations:
        """Returns the same with other measured seconds."""
        return replace(self, seconds=seconds)


@functools.lru_cache(maxsize=4096)
def _digest_of(arch: ArchSpec) -> str:
    """The architecture's digest, which every step of teaching asks for."""
    return arch.digest


def observe(
    rows: Sequence[MeasuredRow], device: DeviceProfile, *, quantities: Sequence[Quantity] | None = None
) -> tuple[Observations, dict[int, ChipwiseError]]:
    """Predictions of ``device``'s data sheet for all measured quantities, and the errors of other rows.

    Args:
        rows: The rows.
        device: The data sheet; what was taught before does not count.
        quantities: Quantities to include for every row. Default: the measured ones.
    """
    sheet = replace(device, taught=None)
    asked: list[tuple[int, Quantity, float]] = []
    for i, row in enumerate(rows):
        found = row.measured()
        asked += [(i, name, found.get(name, math.nan)) for name in (quantities or tuple(found))]
    requests: list[Request] = []
    kept: list[int] = []
    errors: dict[int, ChipwiseError] = {}
    for place, (i, quantity, _) in enumerate(asked):
        try:
            requests.append(rows[i].request(sheet, quantity))
            kept.append(place)
        except ChipwiseError as error:
            errors[i] = error
    groups, problems = grouped(requests)
    errors |= {asked[kept[place]][0]: problem for place, problem in problems.items()}
    answers: dict[int, _Answer] = {}
    for group, kernels in zip(groups, time_groups(groups), strict=True):
        places = [kept[row] for row in group.rows]
        if isinstance(kernels, Unsupported):
            errors |= dict.fromkeys((asked[place][0] for place in places), kernels)
            continue
        variants = [rows[asked[place][0]].variant for place in places]
        answers |= _answers(group, kernels, places, [asked[place][1] for place in places], variants)
    order = [place for place in range(len(asked)) if place in answers and asked[place][0] not in errors]
    left_out = {place: text for place in order if (text := _impossible(*asked[place][1:], answers[place]))}
    errors |= {asked[place][0]: SpecError(text) for place, text in left_out.items()}
    return _joined(rows, asked, [place for place in order if place not in left_out], answers), errors


def _impossible(quantity: Quantity, seconds: float, answer: _Answer) -> str:
    """Why a time cannot be of this model on this chip; empty if it can."""
    least_s = answer.least_s
    if not seconds < IMPOSSIBLE * least_s:
        return ""
    what = {"ttft": "time to the first token", "tpot": "time per token", "total": "time"}[quantity]
    return (
        f"its {what} of {units.show(seconds, 'time')} is left out: the chip's peak allows "
        f"{units.show(least_s, 'time')} at best; part of the prompt may have been in a cache"
    )


@dataclass(frozen=True, slots=True)
class _Answer:
    sheet_s: float
    halfwidth: float
    least_s: float  # that the arithmetic takes at the fastest rate of the sheet, in any format; 0 if it lists none
    passes: tuple[tuple[float, Float64Array, tuple[str, ...]], ...]


def _answers(
    group: Group, kernels: Kernels, places: Sequence[int], quantities: Sequence[Quantity], variants: Sequence[str]
) -> dict[int, _Answer]:
    """Each request's quantity as a sum of its prompt's pass and its decode step."""
    known, setting = constants(), group.setting
    seconds = Seconds.of(group, kernels, known)
    tpot = seconds.tpot(group, known)
    least = intervals.class_width(setting, group.device, several=bool(np.any(group.in_flight > 1)))
    if least is None:
        tokens = prompts = intervals.UNCHECKED.tpot / 2
    else:
        tokens, prompts = least.tpot, least.ttft or max(least.tpot, UNCHECKED_PROMPT)
    prefill = pass_sums(kernels.prefill, seconds.prefill, setting, "prefill")
    decode = pass_sums(kernels.decode, seconds.step, setting, "decode") if group.generates else prefill
    rates = group.device.peak_flops_per_s.values()
    fastest = max(rates, default=math.inf)
    read, made = _flops(kernels.prefill), _flops(kernels.decode)
    found: dict[int, _Answer] = {}
    for i, (place, quantity, variant) in enumerate(zip(places, quantities, variants, strict=True)):
        waited = (tpot[i] - seconds.step[i]) / seconds.prefill[i] if group.generates else 0.0
        first, later = (1.0, 0.0) if quantity == "ttft" else (waited, 1.0)
        if quantity == "total":
            later = float(request_total(0.0, 1.0, int(group.new_tokens[i]))) if group.generates else 0.0
            first = 1.0 + later * waited
        if not group.generates:
            first, later = 1.0, 0.0
        passes = []
        for share, sums in ((first, prefill), (later, decode)):
            if share > 0:
                labels = sums.labels if not variant else _with(sums, variant)
                passes.append((float(share), sums.terms[i], labels))
        sheet_s = float(first * seconds.prefill[i] + (later * seconds.step[i] if later else 0.0))
        part = later * seconds.step[i] / sheet_s if later else 0.0
        width = float(part * tokens + (1 - part) * prompts)
        least_s = sum(share * float(flops[i]) for share, flops in ((first, read), (later, made))) / fastest
        found[place] = _Answer(sheet_s, width, least_s, tuple(passes))
    return found


def _flops(times: PassTimes) -> Float64Array:
    """(requests,): of all kernels of a pass."""
    counted = [part.count * np.asarray(part.op.work().flops, np.float64) for part in times.parts]
    total: Float64Array = np.broadcast_to(np.sum(np.broadcast_arrays(*counted), axis=0), times.figures.shape[2:])
    return total


def _with(sums: PassSums, variant: str) -> tuple[str, ...]:
    phase = sums.labels[0]
    return (*sums.labels, f"variant {variant}", f"{phase}, variant {variant}")


def _joined(
    rows: Sequence[MeasuredRow],
    asked: Sequence[tuple[int, Quantity, float]],
    order: Sequence[int],
    answers: dict[int, _Answer],
) -> Observations:
    passes = [(owner, *each) for owner, place in enumerate(order) for each in answers[place].passes]
    return Observations(
        rows=np.array([asked[place][0] for place in order], int),
        quantities=tuple(asked[place][1] for place in order),
        models=tuple(rows[asked[place][0]].identity for place in order),
        seconds=np.array([asked[place][2] for place in order], float),
        sheet_s=np.array([answers[place].sheet_s for place in order]),
        halfwidth=np.array([answers[place].halfwidth for place in order]),
        owner=np.array([each[0] for each in passes], int),
        share=np.array([each[1] for each in passes]),
        terms=np.array([each[2] for each in passes]),
        labels=tuple(each[3] for each in passes),
    )


def prior_deviation(seen: Observations) -> float:
    """Log standard deviation of the data sheet's error."""
    return float(np.median(seen.halfwidth)) / Z90
