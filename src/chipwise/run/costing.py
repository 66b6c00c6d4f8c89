"""The cost model as a run uses it: a calibrated machine, a priced space, and what measurements have corrected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from chipwise.blocks.lowering import lower
from chipwise.cost.estimate import estimate
from chipwise.cost.model import CostEstimate
from chipwise.hardware.device import MachineProfile
from chipwise.ops import Phase, Workload
from chipwise.predict.correct import Correction, correction
from chipwise.space import SearchSpace
from chipwise.space.constraints import MEASURED_METRICS
from chipwise.space.pricing import PriceTable, ProfilePricer
from chipwise.space.space import Rows
from chipwise.spec import Design

_PHASE = {"ttft": Phase.PREFILL, "tpot": Phase.DECODE}


class Costing:
    """Free metrics of designs and rows, corrected by the measurements told so far."""

    def __init__(self, space: SearchSpace, workload: Workload, profile: MachineProfile) -> None:
        self.profile, self._workload = profile, workload
        self._table = PriceTable(space, workload, ProfilePricer(profile))
        self._corrections: dict[str, Correction] = {}
        self._medians: dict[Design, dict[str, float]] = {}
        self.learn([])

    def learn(self, measured: Iterable[tuple[Design, Mapping[str, float]]]) -> None:
        """Takes all measurements of the run so far; replaces what was learnt before."""
        known = [(self._uncorrected(design), values) for design, values in measured]
        for metric in MEASURED_METRICS:
            pairs = [(cost[metric], values[metric]) for cost, values in known if metric in values]
            self._corrections[metric] = correction(pairs, error=self._error(metric))

    def _error(self, metric: str) -> float:
        """Standard deviation of log(measured / predicted) in the profile's own check."""
        checks = self.profile.checks
        if metric == "peak_memory":
            return checks["memory"].spread
        quantity, tail = metric.split("_")
        phase = _PHASE[quantity].value
        return checks.get(f"{phase}_p99" if tail == "p99" else phase, checks[phase]).spread

    def estimate(self, design: Design) -> CostEstimate:
        """The uncorrected estimate, with every operator."""
        prefill, decode = (lower(design, self._workload, phase) for phase in (Phase.PREFILL, Phase.DECODE))
        return estimate(design, prefill, decode, self._workload, self.profile)

    def _uncorrected(self, design: Design) -> dict[str, float]:
        if design not in self._medians:
            self._medians[design] = {name: item.value for name, item in self.estimate(design).metrics.items()}
        return self._medians[design]

    def promise(self, design: Design) -> dict[str, list[float]]:
        """Each metric's corrected value, with the bounds of its 90 % interval."""
        cost = self._uncorrected(design)
        promised = {metric: list(known.interval(cost[metric])) for metric, known in self._corrections.items()}
        count = float(design.arch.parameters())
        return {**promised, "parameters": [count, count, count]}

    def metrics(self, rows: Rows) -> dict[str, NDArray[np.float64]]:
        """Corrected free metrics of canonical rows, each (n,)."""
        costs = self._table(rows)
        values = {"peak_memory": costs.peak_memory_bytes}
        for quantity, median in (("ttft", costs.ttft_s), ("tpot", costs.tpot_s)):
            tail = self.profile.tails[_PHASE[quantity].value]
            values[f"{quantity}_p50"] = median
            values[f"{quantity}_p99"] = tail.ratio * median + tail.extra_s
        corrected = {metric: value * self._corrections[metric].factor for metric, value in values.items()}
        return {**corrected, "parameters": costs.parameters}
