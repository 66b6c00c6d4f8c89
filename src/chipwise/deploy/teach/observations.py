"""Measured rows, and the data sheet's predictions for them: seconds of each pass for each group of operators."""

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
"""Shortest plausible time, divided by the time of the arithmetic at the sheet's highest rate. It is below 1, because
that rate may be for a base clock or omit unpublished units (Apple's CPUs). Prompts found in a cache take far less."""
PARTS = ("cpu", "gpu", "npu")  # parts of a chip, as variants name them
Quantity = Literal["ttft", "tpot", "total"]
Places = npt.NDArray[np.int64]
Names = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """One row of a table: a model, how it was run, and its times in seconds.

    ``context`` is the number of cached tokens before generation if it differs from the number of prompt tokens. For
    ONNX files, ``shape`` holds texts such as ``x=1,3,48,320`` and ``value`` texts such as ``sr=16000``, separated by
    semicolons.
    """

    number: int  # line number in its file
    model: str | ArchSpec
    runtime: str | None = None
    weights: str | None = None
    kv: str | None = None
    batch: int = 1
    prompt_tokens: int = 512
    new_tokens: int = 128
    context: int | None = None
    variant: str = ""
    shape: str = ""
    value: str = ""
    ttft_s: float | None = None
    tpot_s: float | None = None
    total_s: float | None = None
    ttft_tail: float | None = None  # P99 / P50
    tpot_tail: float | None = None

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model if isinstance(self.model, str) else self.model.name

    @property
    def identity(self) -> str:
        """Identity of the row's model, for grouping."""
        return self.model if isinstance(self.model, str) else _digest_of(self.model)

    def sheet(self, device: DeviceProfile) -> DeviceProfile:
        """The part of ``device`` that ran the row's model, as the row's variant says, with as many cores as threads.

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
        """Names of the measured quantities."""
        times: dict[Quantity, float | None] = {"ttft": self.ttft_s, "tpot": self.tpot_s, "total": self.total_s}
        return {name: value for name, value in times.items() if value is not None}

    def request(self, device: DeviceProfile, quantity: Quantity) -> Request:
        """The request of a row for one quantity."""
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
    """Measured quantities, each a weighted sum of the seconds of a pass over the prompt and those of a decode step.

    ``seconds[i]`` is the sum of ``share[i, p]`` times the seconds of pass ``p``.

    Attributes:
        rows: Index of the measured row of each quantity, (n,).
        quantities: Name of each quantity, n names.
        models: Identity of each row's model, n names; cross-validation leaves out whole models.
        seconds: Measured seconds, (n,).
        sheet_s: Predictions of the data sheet, (n,).
        halfwidth: Half-width of the data sheet's 90 % interval, in logarithms, (n,).
        share: How often the quantity contains each pass, (n, 2).
        terms: Seconds of each pass by group of operators, (n, 2, terms).
        labels: For each quantity, two tuples: the names of the factors that multiply the seconds of each pass. A tuple
            is empty if the share of its pass is 0.
    """

    rows: Places
    quantities: tuple[str, ...]
    models: tuple[str, ...]
    seconds: Float64Array
    sheet_s: Float64Array
    halfwidth: Float64Array
    share: Float64Array
    terms: Float64Array
    labels: tuple[tuple[Names, Names], ...]

    def __len__(self) -> int:
        return len(self.seconds)

    def only(self, chosen: Sequence[int] | Places) -> Observations:
        """Selects some of the quantities."""
        places = np.asarray(chosen, int)
        return Observations(
            rows=self.rows[places],
            quantities=tuple(self.quantities[i] for i in places),
            models=tuple(self.models[i] for i in places),
            seconds=self.seconds[places],
            sheet_s=self.sheet_s[places],
            halfwidth=self.halfwidth[places],
            share=self.share[places],
            terms=self.terms[places],
            labels=tuple(self.labels[i] for i in places),
        )


@functools.lru_cache(maxsize=4096)
def _digest_of(arch: ArchSpec) -> str:
    """The architecture's digest, cached."""
    return arch.digest


def observe(rows: Sequence[MeasuredRow], device: DeviceProfile) -> tuple[Observations, dict[int, ChipwiseError]]:
    """Predictions of ``device``'s data sheet for all measured quantities, and the errors of unusable rows.

    Args:
        rows: The rows.
        device: The data sheet; an earlier fit is ignored.
    """
    sheet = replace(device, taught=None)
    asked: list[tuple[int, Quantity, float]] = []
    requests: list[Request] = []
    errors: dict[int, ChipwiseError] = {}
    for i, row in enumerate(rows):
        for quantity, seconds in row.measured().items():
            try:
                requests.append(row.request(sheet, quantity))
            except ChipwiseError as error:
                errors[i] = error
            else:
                asked.append((i, quantity, seconds))
    groups, problems = grouped(requests)
    errors |= {asked[place][0]: problem for place, problem in problems.items()}
    answers: dict[int, _Answer] = {}
    for group, kernels in zip(groups, time_groups(groups), strict=True):
        if isinstance(kernels, Unsupported):
            errors |= {asked[place][0]: kernels for place in group.rows}
            continue
        variants = [rows[asked[place][0]].variant for place in group.rows]
        answers |= _answers(group, kernels, [asked[place][1] for place in group.rows], variants)
    order = [place for place in sorted(answers) if asked[place][0] not in errors]
    left_out = {place: text for place in order if (text := _impossible(*asked[place][1:], answers[place]))}
    errors |= {asked[place][0]: SpecError(text) for place, text in left_out.items()}
    order = [place for place in order if place not in left_out]
    found = [answers[place] for place in order]
    seen = Observations(
        rows=np.array([asked[place][0] for place in order], int),
        quantities=tuple(asked[place][1] for place in order),
        models=tuple(rows[asked[place][0]].identity for place in order),
        seconds=np.array([asked[place][2] for place in order], float),
        sheet_s=np.array([each.sheet_s for each in found]),
        halfwidth=np.array([each.halfwidth for each in found]),
        share=np.array([each.share for each in found]),
        terms=np.array([each.terms for each in found]),
        labels=tuple(each.labels for each in found),
    )
    return seen, errors


def _impossible(quantity: Quantity, seconds: float, answer: _Answer) -> str:
    """Why a time cannot belong to this model on this chip; empty if it can."""
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
    least_s: float  # time of the arithmetic at the sheet's highest rate in any format; 0 if it has no rates
    share: Float64Array
    terms: Float64Array
    labels: tuple[Names, Names]


def _answers(
    group: Group, kernels: Kernels, quantities: Sequence[Quantity], variants: Sequence[str]
) -> dict[int, _Answer]:
    """Maps each request's index to its quantity, as a weighted sum of the pass over the prompt and a decode step."""
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
    pass_s = np.stack([seconds.prefill, seconds.step], axis=-1)
    flops = np.stack([_flops(kernels.prefill), _flops(kernels.decode)], axis=-1)
    fastest = max(group.device.peak_flops_per_s.values(), default=math.inf)
    found: dict[int, _Answer] = {}
    for i, (place, quantity, variant) in enumerate(zip(group.rows, quantities, variants, strict=True)):
        share = np.array([1.0, 0.0])
        if group.generates and quantity != "ttft":
            waited = (tpot[i] - seconds.step[i]) / seconds.prefill[i]
            later = 1.0 if quantity == "tpot" else request_total(0.0, 1.0, int(group.new_tokens[i]))
            share = np.array([later * waited + (quantity == "total"), later])
        sheet_s = float(share @ pass_s[i])
        part = share[1] * seconds.step[i] / sheet_s if share[1] else 0.0
        found[place] = _Answer(
            sheet_s=sheet_s,
            halfwidth=float(part * tokens + (1 - part) * prompts),
            least_s=float(share @ flops[i]) / fastest,
            share=share,
            terms=np.stack([prefill.terms[i], decode.terms[i]]),
            labels=(_labels(prefill, variant, share[0]), _labels(decode, variant, share[1])),
        )
    return found


def _flops(times: PassTimes) -> Float64Array:
    """FLOPs of all kernels of a pass, (requests,)."""
    counted = [part.count * np.asarray(part.op.work().flops, np.float64) for part in times.parts]
    total: Float64Array = np.broadcast_to(np.sum(np.broadcast_arrays(*counted), axis=0), times.figures.shape[2:])
    return total


def _labels(sums: PassSums, variant: str, share: float) -> Names:
    if not share > 0:
        return ()
    return (*sums.labels, f"variant {variant}", f"{sums.labels[0]}, variant {variant}") if variant else sums.labels


def prior_deviation(seen: Observations) -> float:
    """Standard deviation of the data sheet's error in logarithms."""
    return float(np.median(seen.halfwidth)) / Z90
