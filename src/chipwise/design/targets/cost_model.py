"""A run's cost model: a machine's calibration, a table of block costs, and corrections learnt from measurements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from chipwise.deploy.calibrate.learning import (
    Correction,
    Prepared,
    correction,
    held_out_predictions,
    learn,
    prepare,
    stored_bytes,
)
from chipwise.design.limits import MEASURED_METRICS, USED, derived, derived_intervals, with_gaps
from chipwise.design.prices.price_table import PeakPricer, PriceTable, ProfilePricer
from chipwise.design.targets.chance import Bounds
from chipwise.design.targets.prompts import bounds_over_prompts, rows_over_prompts
from chipwise.design.targets.utilisation import share_within
from chipwise.hardware.device import MachineProfile
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.space.search_space import Rows, SearchSpace
from chipwise.model.walk.lower import lower
from chipwise.predict.cost.estimate import estimate
from chipwise.predict.cost.memory import memory_parts
from chipwise.predict.cost.model import CostEstimate
from chipwise.predict.cost.pricing import combine
from chipwise.predict.cost.residual import AMPLITUDE, doubt
from chipwise.predict.cost.spending import Rates, spent

UNSTATED = Rates()
_PHASE = {"ttft": Phase.PREFILL, "tpot": Phase.DECODE}


@dataclass(frozen=True)
class NotedMeasurement:
    """A measured design as stored in a trial; implements :class:`chipwise.deploy.calibrate.learning.Observed`."""

    design: Design
    workload: Workload
    values: Mapping[str, float]

    @property
    def peak_memory_bytes(self) -> float | None:
        """Measured peak resident memory; None if it could not be read."""
        return self.values.get("peak_memory")

    def seconds(self, phase: Phase, share: float) -> float:
        """Measured time of a pass at the percentile ``share`` (0.5 or 0.99); NaN if it was not recorded."""
        one_pass = phase is Phase.PREFILL or not self.design.arch.reads_tokens
        name = f"{'ttft' if one_pass else 'tpot'}_p{share * 100:.0f}"
        return self.values.get(name, math.nan) / self.design.arch.passes


def _check_name(metric: str) -> str:
    """Key of a metric's prediction error in profiles: ``decode_p99`` for ``tpot_p99``, ``prefill`` for ``ttft_p50``."""
    quantity, tail = metric.split("_")
    return "memory" if metric == "peak_memory" else _PHASE[quantity].value + ("_p99" if tail == "p99" else "")


class CostModel:
    """Predicts the costs of designs and encoded designs (rows) from a profile that the run's measurements update.

    Medians come from the updated profile. Each P99 and the memory get one correction factor instead, because a few
    measurements are not enough for a new fit. Joules and dollars are the median times multiplied by ``rates``.

    Args:
        space: The space of designs.
        workload: Sizes of a request.
        profile: The calibration.
        rates: Power and price of the machine.
        prompt_p99: P99 of the number of prompt tokens. If it is given, ``workload`` states the P50, and P99 metrics
            refer to all prompt lengths.
        used: Metrics that the run uses. MFU, MBU and gaps between tokens are predicted only if they are among these.
            Here, a gap is the time of one decode step; :func:`unknown_shares` says whether MFU and MBU are known.
    """

    def __init__(
        self,
        space: SearchSpace,
        workload: Workload,
        profile: MachineProfile,
        *,
        rates: Rates = UNSTATED,
        prompt_p99: int | None = None,
        used: Iterable[str] = (),
    ) -> None:
        self._longest: CostModel | None = None  # predicts requests with prompts of the P99 length
        if prompt_p99 is not None:
            self._longest = CostModel(space, replace(workload, prompt_tokens=prompt_p99), profile)
        self._used, self._peak = frozenset(used), PeakPricer(profile)
        self.profile, self._calibrated, self._workload = profile, profile, workload
        self._rates, self._space = rates, space
        self._one_pass = space.spec.kind.one_pass
        self._measured = {name for name in MEASURED_METRICS if not (self._one_pass and name.startswith("tpot"))}
        self._pricer = ProfilePricer(profile)
        self._table = PriceTable(space, workload, self._pricer)
        self._corrections: dict[str, Correction] = {}
        self._medians: dict[Design, dict[str, float]] = {}
        self._prepared: dict[Design, Prepared] = {}
        self.learn([])

    def learn(self, measured: Iterable[tuple[Design, Mapping[str, float]]]) -> None:
        """Updates the profile with all measurements of the run so far; earlier corrections are replaced."""
        medians = {name for name in self._measured if name.endswith("_p50")}
        known = [(design, values) for design, values in measured if values.keys() >= medians]
        joint = self._joint(known)
        self.profile = self._pricer.profile = self._calibrated if joint is None else learn(self._calibrated, joint)
        self._medians = {}
        # Errors of tails and memory are cross-validated: each design is predicted without its own measurement.
        excluded = {} if joint is None else held_out_predictions(self._calibrated, joint, memory=False)
        for metric in self._measured:
            pairs = []
            if not metric.endswith("_p50") and joint is not None:
                predicted = excluded[_check_name(metric)]
                pairs = [
                    (float(p) * (1 if metric == "peak_memory" else design.arch.passes), v[metric])
                    for p, (design, v) in zip(predicted, known, strict=True)
                    if metric in v
                ]
            self._corrections[metric] = correction(pairs, error=self._error(metric))
        if (longest := self._longest) is not None:  # measured prompts have the P50 length
            longest.profile = longest._pricer.profile = self.profile
            longest._corrections, longest._medians = self._corrections, {}

    def _joint(self, known: list[tuple[Design, Mapping[str, float]]]) -> Prepared | None:
        """The measured designs with their operators, for a joint fit of times.

        Measured memory is left out, so the calibrated fit of memory does not change.
        """
        joint: Prepared | None = None
        for design, values in known:
            item = NotedMeasurement(design, self._workload, {k: v for k, v in values.items() if k != "peak_memory"})
            held = self._prepared.get(design)
            if held is None or held.observed[0] != item:
                held = self._prepared[design] = prepare(self._calibrated, [item])
            joint = held if joint is None else joint + held
        return joint

    def _error(self, metric: str) -> float:
        """Standard deviation of log(measured / predicted), from the profile's stored errors."""
        checks, name = self.profile.checks, _check_name(metric)
        return checks.get(name, checks[name.removesuffix("_p99")]).spread

    def estimate(self, design: Design) -> CostEstimate:
        """The estimate of a design from the updated profile, with every operator."""
        prefill, decode = (lower(design, self._workload, phase) for phase in (Phase.PREFILL, Phase.DECODE))
        return estimate(design, prefill, decode, self._workload, self.profile)

    def _uncorrected(self, design: Design) -> dict[str, float]:
        """Predictions of the metrics that are measured, without correction; each distinct operator is computed once."""
        if design not in self._medians:
            arch, profile = design.arch, self.profile
            parts = memory_parts(design, self._workload, runtime=profile.runtime)
            found = {"peak_memory": parts.peak_bytes(profile.memory)}
            for quantity, phase in list(_PHASE.items())[: 1 if self._one_pass else None]:
                price = self._pricer.pass_columns(design, self._workload, phase)
                logits = self._workload.batch * arch.outputs
                median = arch.passes * float(combine(price, profile, phase, logits=logits))
                tail = profile.tails[phase.value]
                found |= {f"{quantity}_p50": median, f"{quantity}_p99": float(tail.p99_s(median, passes=arch.passes))}
            self._medians[design] = found
        return self._medians[design]

    def predict(self, design: Design) -> dict[str, Bounds]:
        """Each metric's corrected value and 90 % interval; intervals widen for sizes beyond the calibrated models."""
        cost, size = self._uncorrected(design), stored_bytes(design, self._workload)
        predicted = {}
        for metric, known in self._corrections.items():
            usual, here = self._error(metric), self.profile.check(_check_name(metric), size).spread
            extra = math.sqrt(max(0.0, here**2 - usual**2))
            predicted[metric] = list(known.interval(cost[metric], extra=extra))
        count = float(design.arch.parameters())
        if self._one_pass:
            follows = derived_intervals(predicted, self._space.spec)
            return {**predicted, "parameters": [count, count, count], **follows}
        ends = zip(predicted["ttft_p50"], predicted["tpot_p50"], strict=True)
        each = [spent(ttft_s, tpot_s, self._workload, self._rates) for ttft_s, tpot_s in ends]
        costs = {name: [spans[0], *sorted(spans[1:])] for name in each[0] if (spans := [x[name] for x in each])}
        over = {} if self._longest is None else bounds_over_prompts(predicted, self._longest.predict(design))
        found = {**predicted, **over, "parameters": [count, count, count], **costs, **self._shares(design, predicted)}
        return with_gaps(found, self._used)

    def _shares(self, design: Design, predicted: Mapping[str, Bounds]) -> dict[str, Bounds]:
        """The design's MFU and MBU, computed from its own FLOPs and bytes."""
        if not self._used & {*USED}:
            return {}
        needs = (self._peak.pass_columns(design, self._workload, phase) for phase in Phase)
        least_s = self._peak.latencies_s(*needs, logits=np.zeros(1))
        each = zip(USED, least_s, (predicted["ttft_p50"], predicted["tpot_p50"]), strict=True)
        return {name: list(share_within(float(s), time_s)) for name, s, time_s in each if name in self._used}

    @cached_property
    def _least(self) -> PriceTable:
        """Price table with the minimum seconds of prefill and of decode steps, at the machine's calibrated peaks."""
        return PriceTable(self._space, self._workload, self._peak)

    def novelty(self, design: Design) -> float:
        """Novelty of a design: 0 if it was measured, 1 if it is far from all measured designs."""
        figures = prepare(self._calibrated, [NotedMeasurement(design, self._workload, {})]).tables
        residuals = self.profile.residuals
        found = [doubt(figures[p].figures, residuals[p.value])[0] for p in Phase if p.value in residuals]
        return float(max(found, default=AMPLITUDE)) / AMPLITUDE

    def metrics(self, rows: Rows) -> dict[str, NDArray[np.float64]]:
        """Corrected metrics of canonical rows (encoded designs), each (n,); only metrics that need no training."""
        costs = self._table(rows)
        values = {"peak_memory": costs.peak_memory_bytes}
        for quantity, median in (("ttft", costs.ttft_s), ("tpot", costs.tpot_s)):
            if quantity == "tpot" and self._one_pass:
                continue
            tail = self.profile.tails[_PHASE[quantity].value]
            values[f"{quantity}_p50"] = median
            values[f"{quantity}_p99"] = tail.p99_s(median, passes=self._space.passes(rows))
        corrected = {metric: value * self._corrections[metric].factor for metric, value in values.items()}
        if self._longest is not None:
            corrected |= rows_over_prompts(corrected, self._longest.metrics(rows))
        if self._one_pass:
            return {**corrected, "parameters": costs.parameters, **derived(corrected, self._space.spec)}
        costs_of = spent(corrected["ttft_p50"], corrected["tpot_p50"], self._workload, self._rates)
        found = with_gaps({**corrected, "parameters": costs.parameters, **costs_of}, self._used)
        if self._used & {*USED}:
            least = self._least(rows)
            each = {"mfu": least.ttft_s / corrected["ttft_p50"], "mbu": least.tpot_s / corrected["tpot_p50"]}
            found |= {name: np.minimum(each[name], 1.0) for name in USED if name in self._used}
        return found


def unknown_shares(space: SearchSpace, profile: MachineProfile) -> dict[str, str]:
    """Maps each of MFU and MBU that is unknown for the space's designs to the reason and what to do about it."""
    found = {}
    if lacking := [name for name in space.spec.formats if name not in profile.peaks]:
        found["mfu"] = (
            f"the calibration has no peak of matrix products in {lacking[0]}, so MFU is unknown; leave {lacking[0]} "
            "out of space.weights, or limit ttft_p50"
        )
    if not profile.roofs:
        lacks = (
            "the calibration has no memory bandwidth, so MFU and MBU are unknown; calibrate again: chipwise calibrate"
        )
        found |= dict.fromkeys(USED, lacks)
    return found
