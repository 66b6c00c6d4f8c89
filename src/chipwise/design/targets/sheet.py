"""Targets with a data sheet: costs are predicted as by ``chipwise estimate``, and corrected with measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from chipwise.core import units
from chipwise.core.arrays import Float64Array
from chipwise.core.statistics import Z90, nnls
from chipwise.deploy.teach.machine import teach_rows
from chipwise.deploy.teach.observations import MeasuredRow
from chipwise.design.limits import (
    GAPS,
    POWER_METRICS,
    Constraint,
    Objective,
    derived,
    derived_intervals,
    shares_asked,
    with_gaps,
)
from chipwise.design.prices.price_table import Costs, PriceTable
from chipwise.design.run.folder import RunFolder
from chipwise.design.run.spec import RunSpec, TargetSpec
from chipwise.design.targets.bench import Bench, Benched
from chipwise.design.targets.chance import Bounds, spread_of, value_of
from chipwise.design.targets.learnt import Learnt
from chipwise.design.targets.prompts import bounds_over_prompts, rows_over_prompts, scale
from chipwise.design.targets.representable import check_space
from chipwise.design.targets.served_pricer import ServedPricer
from chipwise.design.targets.utilisation import share_within
from chipwise.errors import SpecError, Unsupported
from chipwise.hardware.datasheet import DeviceProfile, with_cores
from chipwise.hardware.facts import Power, PriceRate
from chipwise.hardware.runtime import CORES, on_device, runtime_named
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Workload
from chipwise.model.space.search_space import Rows, SearchSpace
from chipwise.predict.cost.model import CostEstimate, Predicted
from chipwise.predict.cost.spending import Rates, spent
from chipwise.predict.served import image_law
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.estimate import cost_of, estimate_of
from chipwise.predict.served.heat import USUAL_C, drawn_w, slowdown
from chipwise.predict.served.intervals import UNCHECKED_PROMPT
from chipwise.predict.served.request import Request
from chipwise.predict.served.tails import TAILS, kind_of, ratios, tail_of, taught_tails

Z80 = 1.2816  # 90 % of a normal distribution lies below this many standard deviations
SAMPLE = 48  # designs to whose estimates fast formulas are fitted, for energy and for times after teaching


class SheetTarget(Benched):
    """A device that a data sheet describes, with the runtime that will serve models there; may be measured over ssh.

    Args:
        space: The space of designs.
        device: The data sheet, with the run's power and price.
        served: Runtime, KV-cache format and parallelism plan.
        workload: Sizes of a request.
        seed: Random seed for sampling designs. Fast formulas for screening are fitted to the estimates of this sample.
        energy: Whether to predict watts and joules too, if the data sheet states the board power.
        used: Whether to predict MFU and MBU too.
        prompt_p99: P99 of the number of prompt tokens. If it is given, ``workload`` states the P50, and P99 metrics
            refer to all prompt lengths.
        ambient_c: Ambient temperature in degrees Celsius; if given, ``tpot_sustained`` is predicted too.
        source: Text that names the source of the measurements in the taught profile.
        bench: Measures on the device; None if nothing is measured.

    Raises:
        Unsupported: The runtime lacks a format of the space's weights, or the data sheet lacks a rate that they need.
    """

    def __init__(
        self,
        space: SearchSpace,
        device: DeviceProfile,
        *,
        served: TargetSpec,
        workload: Workload,
        seed: int,
        energy: bool,
        used: bool = False,
        prompt_p99: int | None = None,
        ambient_c: float | None = None,
        source: str = "a search",
        bench: Bench | None = None,
    ) -> None:
        super().__init__(
            bench,
            f"{device.title} cannot be measured from here; pack models for it with chipwise kit, and import what was "
            "measured there with chipwise measurements import",
        )
        self._longest: SheetTarget | None = None  # predicts requests with prompts of the P99 length
        if prompt_p99 is not None:
            longer = replace(workload, prompt_tokens=prompt_p99)
            self._longest = SheetTarget(space, device, served=served, workload=longer, seed=seed, energy=False)
        self._ambient_c = ambient_c
        self._used = used and not space.spec.kind.one_pass
        self._one_pass = space.spec.kind.one_pass
        if kind := space.spec.kind.off_sheets:
            raise Unsupported(
                f"spaces of {kind} can be predicted only on a calibrated machine, not on {device.title}; estimate "
                "a single model there with `chipwise estimate`, or search with target: {device: local}"
            )
        if self._one_pass and energy:
            raise Unsupported(
                "a data sheet predicts neither watts nor joules if no tokens are generated; limit ttft_p50 or memory"
            )
        self._space, self._sheet = space, device
        self._workload, self._seed, self._energy, self._source = workload, seed, energy, source
        self.device = device  # the data sheet, corrected with measurements
        template = Request(
            model="",
            deployment=Deployment(device=device, runtime=served.runtime, kv=served.kv, tp=served.tp, pp=served.pp),
            batch=workload.batch,
            prompt_tokens=workload.prompt_tokens,
            new_tokens=workload.new_tokens,
        )
        self._pricer = ServedPricer(template, device, one_pass=self._one_pass)
        if self._one_pass:
            self._require_one_law()
        self._rates = Rates(usd_per_s=None if device.price is None else device.price_usd_per_s * served.tp * served.pp)
        runtime = on_device(runtime_named(served.runtime), device)
        self._ratios = ratios(
            kind_of(runtime, device, workload.batch),
            prompt_tokens=workload.prompt_tokens,
            new_tokens=workload.new_tokens,
            batch=workload.batch,
            taught=taught_tails(device, runtime),
        )
        self._learnt = Learnt({})
        self._estimates: dict[Design, CostEstimate] = {}
        text = f"<= {units.show(device.usable_bytes, 'bytes')} (the device's memory)"
        self.limits = (Constraint(metric="peak_memory", op="<=", limit=device.usable_bytes, text=text),)

    def _require_one_law(self) -> None:
        """Refuses a space if some designs are predicted as a whole, others kernel by kernel: these are not comparable.

        Raises:
            Unsupported: Some designs of the space are predicted as a whole, and others kernel by kernel.
        """
        sample = self._space.sample(SAMPLE, np.random.default_rng([self._seed, 29]))
        asked = {image_law.answers(self._pricer.setting(self._space.design(row))) for row in sample}
        if len(asked) > 1:
            raise Unsupported(
                "for this runtime, plain vision transformers are predicted as a whole and the other designs of this "
                "space kernel by kernel, and the two kinds of prediction are not comparable; name another runtime, "
                "such as onnxruntime, or allow only plain ones (patches, equal layers, head sizes that add up to the "
                "width)"
            )

    @property
    def title(self) -> str:
        """The data sheet's title."""
        return self.device.title

    def with_sustained_limits(self, spec: RunSpec) -> RunSpec:
        """Returns ``spec`` unchanged, because times under sustained load are predicted directly."""
        return spec

    @cached_property
    def _table(self) -> PriceTable:
        return PriceTable(self._space, self._workload, self._pricer)

    def _sampled(self, seed: int) -> tuple[Rows, list[CostEstimate]]:
        """A sample of the space, and the full estimates of its designs with the current corrections."""
        sample = self._space.sample(SAMPLE, np.random.default_rng([self._seed, seed]))
        return sample, [self.estimate(self._space.design(row)) for row in sample]

    @cached_property
    def _joules(self) -> Float64Array | None:
        """Watts during prefill and during a decode step, (2,), from which the joules per new token follow.

        None if the data sheet states no board power. The watts are fitted to full estimates of a sample of the space,
        with the current corrections; they serve for screening only, while :meth:`predict` uses a design's own estimate.
        """
        rows, joules = [], []
        for found in self._sampled(17)[1]:
            energy = found.metrics.get("joules_per_token")
            if energy is None:
                return None
            rows.append([found.ttft_s / self._workload.new_tokens, found.tpot_s])
            joules.append(energy.value)
        scaled = np.array(rows) / np.array(joules)[:, None]  # so that least squares minimises relative errors
        return nnls(scaled, np.ones(len(joules)))

    @cached_property
    def _at_peak(self) -> Float64Array:
        """Coefficients for the minimum seconds of a prompt and of a step, (2, 3): per parameter, per byte, constant.

        Fitted to full estimates of a sample of the space; decisions on single designs use the design's own estimate.
        """
        sample, found = self._sampled(17)
        costs = self._table(sample)
        columns = np.stack([costs.parameters, costs.peak_memory_bytes, np.ones(len(sample))], axis=1)
        least_s = np.array([_least_s(each) for each in found]).T
        return np.array([np.linalg.lstsq(columns / s[:, None], np.ones(len(sample)), rcond=None)[0] for s in least_s])

    @cached_property
    def _step_share(self) -> float:
        """The decode step's share of the time per token; other requests' prompts take the remaining time.

        The median of a sample of the space; decisions on single designs use the design's own estimate.
        """
        if self._workload.batch == 1:
            return 1.0
        _, found = self._sampled(31)
        return float(np.median([each.metrics["itl_p50"].value / each.tpot_s for each in found]))

    @cached_property
    def _slowdown(self) -> float:
        """Factor by which sustained load makes times longer, for screening.

        The median of a sample of the space; :meth:`predict` uses the factor of the design itself.
        """
        _, found = self._sampled(37)
        return float(np.median([slowdown(self.device, self._ambient_c or 0.0, drawn_w(each)).value for each in found]))

    def metrics(self, rows: Rows) -> Mapping[str, Float64Array]:
        """Predicted metrics of canonical rows (encoded designs), each (n,)."""
        costs, workload = self._table(rows), self._workload
        ttft_s, tpot_s = costs.ttft_s, costs.tpot_s
        if self.device.taught is not None or self._one_pass:  # on many chips, formulas for whole passes predict images
            layers = self._space.values(rows, "depth").astype(float)
            ttft_s, tpot_s = (
                each[0] * seconds + each[1] * layers + each[2]
                for each, seconds in zip(self._taught_scale, (ttft_s, tpot_s), strict=True)
            )
        if self._one_pass:
            return self._of_pass(ttft_s, costs)
        found = {
            "ttft_p50": ttft_s,
            "tpot_p50": tpot_s,
            "itl_p50": self._step_share * tpot_s,
            "peak_memory": costs.peak_memory_bytes * self._learnt.factor("peak_memory"),
            "parameters": costs.parameters,
        }
        found |= {name: self._ratio(name) * found[median] for name, median in TAILS.items()}
        if self._longest is not None:
            found |= rows_over_prompts(found, self._longest.metrics(rows))
        if self._ambient_c is not None:
            found["tpot_sustained"] = self._slowdown * found["tpot_p50"]
        if self._used:
            columns = np.stack([costs.parameters, costs.peak_memory_bytes, np.ones(len(rows))], axis=1)
            least_s = columns @ self._at_peak.T
            for i, (name, seconds) in enumerate((("mfu", found["ttft_p50"]), ("mbu", found["itl_p50"]))):
                found[name] = np.clip(least_s[:, i] / seconds, 1e-6, 1.0)
        found |= spent(found["ttft_p50"], found["tpot_p50"], workload, self._rates)
        if self._energy and self._joules is not None:
            ttft_j, step_j = self._joules
            token_j = ttft_j * found["ttft_p50"] / workload.new_tokens + step_j * found["tpot_p50"]
            token_j = token_j * self._learnt.factor("joules_per_token")
            request_s = found["ttft_p50"] + (workload.new_tokens - 1) * found["tpot_p50"]
            found["joules_per_token"] = token_j
            found["power"] = token_j * workload.new_tokens * workload.batch / request_s
        return found

    def _of_pass(self, pass_s: Float64Array, costs: Costs) -> Mapping[str, Float64Array]:
        """Metrics of models whose requests are a single forward pass."""
        median_s = pass_s * self._learnt.factor("ttft_p50")
        found = {
            "ttft_p50": median_s,
            "peak_memory": costs.peak_memory_bytes * self._learnt.factor("peak_memory"),
            "parameters": costs.parameters,
        }
        return found | {"ttft_p99": self._ratio("ttft_p99") * median_s} | derived(found, self._space.spec)

    def _ratio(self, name: str) -> float:
        """Ratio P99 / P50 of a metric: as measured on this device, else as measured on other devices."""
        return max(1.0, self._learnt.factor(name)) if self._learnt.knows(name) else self._ratios[name].value

    def predict(self, design: Design) -> dict[str, Bounds]:
        """Each metric of a design with its 90 % interval, from a full estimate that is corrected with measurements."""
        found, workload = self.estimate(design), self._workload
        known: dict[str, Bounds] = {
            name: (item.value, item.low, item.high)
            for name, item in found.metrics.items()
            if name in ("ttft_p50", "tpot_p50", "itl_p50", "joules_per_token")
        }
        known["peak_memory"] = (found.peak_memory_bytes, None, None)
        known = {metric: self._learnt.corrected(metric, bounds) for metric, bounds in known.items()}
        known |= self._tails(known, found)
        if self._longest is not None:
            known |= bounds_over_prompts(known, self._longest.predict(design))
        count = float(design.arch.parameters())
        known["parameters"] = (count, count, count)
        if self._one_pass:
            known |= derived_intervals({"ttft_p50": known["ttft_p50"]}, self._space.spec)
            return {metric: list(bounds) for metric, bounds in known.items()}
        each = [
            {} if ttft is None or tpot is None else spent(ttft, tpot, workload, self._rates)
            for ttft, tpot in zip(known["ttft_p50"], known["tpot_p50"], strict=True)
        ]
        for metric in each[0]:
            value, *ends = (found.get(metric) for found in each)
            low, high = sorted(end for end in ends if end is not None) if None not in ends else (None, None)
            known[metric] = (value, low, high)  # rates fall when times rise
        if self._ambient_c is not None:
            known["tpot_sustained"] = self._hot(found, known["tpot_p50"], self._ambient_c)
        if self._used:
            least_s = _least_s(found)
            known["mfu"] = share_within(least_s[0], known["ttft_p50"])
            known["mbu"] = share_within(least_s[1], known["itl_p50"])
        if "joules_per_token" in known:
            known["power"] = self._power(known, workload.new_tokens * workload.batch)
        return {metric: list(bounds) for metric, bounds in known.items()}

    def _tails(self, known: Mapping[str, Bounds], estimate: CostEstimate) -> dict[str, Bounds]:
        """P99 times: medians times the ratios measured on the device; without measurements, those of the estimate."""
        found: dict[str, Bounds] = {}
        for name, median in TAILS.items():
            if median not in known:
                continue
            if not self._learnt.knows(name):
                there = estimate.metrics[name]
                factor = value_of(known[median]) / estimate.metrics[median].value
                found[name] = scale((there.value, there.low, there.high), factor)
                continue
            ratio = self._learnt.corrected(name, (1.0, None, None))
            own, usual = spread_of(ratio), spread_of(known[median])
            if own is None:
                continue
            value = max(1.0, value_of(ratio)) * value_of(known[median])
            half = None if usual is None else math.exp(Z90 * math.hypot(own, usual))
            found[name] = (value, None, None) if half is None else (value, value / half, value * half)
        return found

    def _hot(self, found: CostEstimate, cold: Bounds, ambient_c: float) -> Bounds:
        """TPOT under sustained load: the corrected median times the slowdown of this design."""
        median = Predicted(value=value_of(cold), low=cold[1], high=cold[2])
        hot = tail_of(median, slowdown(self.device, ambient_c, drawn_w(found)), UNCHECKED_PROMPT)
        return (hot.value, hot.low, hot.high)

    def _power(self, known: Mapping[str, Bounds], tokens: int) -> Bounds:
        """Mean watts: joules divided by seconds. The error of the time cancels out; that of the power remains."""
        request_s = value_of(known["ttft_p50"]) + (self._workload.new_tokens - 1) * value_of(known["tpot_p50"])
        watts = value_of(known["joules_per_token"]) * tokens / request_s
        whole, time = spread_of(known["joules_per_token"]), spread_of(known["tpot_p50"])
        if whole is None or time is None:
            return (watts, None, None)
        half = Z90 * math.sqrt(max(whole**2 - time**2, 0.0))
        return (watts, watts * math.exp(-half), watts * math.exp(half))

    def spreads(self, designs: Sequence[Design]) -> Mapping[str, float]:
        """Maps each metric that has an interval to the largest standard deviation of its logarithm over ``designs``.

        If an interval extends farther above the value than below it, a larger deviation is returned, so that a limit
        tightened by it is met with the usual confidence of 90 %.
        """
        found: dict[str, float] = {}
        for design in designs:
            for metric, bounds in self.predict(design).items():
                spread = spread_of(bounds)
                if spread:
                    value, low, high = (each or value_of(bounds) for each in bounds)
                    spread += max(0.0, 0.5 * math.log(low * high) - math.log(value)) / Z80
                    found[metric] = max(found.get(metric, 0.0), spread)
        return found

    def novelty(self, design: Design) -> float:
        """1 if nothing has been measured on the device yet, else 0."""
        return 1.0 if self.device.taught is None and not self._learnt.knows("ttft_p50") else 0.0

    def learn(self, measured: Iterable[tuple[Design, Mapping[str, float]]]) -> None:
        """Updates predictions with all measurements of the run so far; earlier corrections are replaced.

        Medians are fitted as ``chipwise teach`` does. Memory, energy per token, and the ratio of each P99 to its P50
        get one factor each. Requests are measured one at a time, so a gap between tokens has the same P99 as a decode
        step.
        """
        needed = {"ttft_p50"} if self._one_pass else {"ttft_p50", "tpot_p50"}
        known = [(design, with_gaps(values, GAPS)) for design, values in measured if values.keys() >= needed]
        self._forget()
        self.device = self._sheet
        if not known:
            return
        if self._one_pass:  # teaching uses rows with generated tokens
            self._learnt = Learnt({**self._pairs(known, "ttft_p50", "peak_memory"), **_tail_pairs(known)})
            return
        rows = [self._row(i, design, values) for i, (design, values) in enumerate(known)]
        taught = teach_rows(self._sheet, rows, name=self._sheet.name, source=self._source)
        self.device = replace(self._sheet, taught=taught)
        self._learnt = Learnt({**self._pairs(known, "peak_memory", "joules_per_token"), **_tail_pairs(known)})
        if self._longest is not None:  # measured prompts have the P50 length
            self._longest._forget()
            self._longest.device, self._longest._learnt = self.device, self._learnt

    def _pairs(
        self, known: Sequence[tuple[Design, Mapping[str, float]]], *metrics: str
    ) -> dict[str, list[tuple[Bounds, float]]]:
        """Maps each metric to its pairs of predicted and measured values."""
        pairs: dict[str, list[tuple[Bounds, float]]] = {metric: [] for metric in metrics}
        for design, values in known:
            predicted = self.predict(design)
            if self._longest is not None:  # measured prompts have the P50 length
                predicted["peak_memory"] = [self.estimate(design).peak_memory_bytes, None, None]
            for metric in pairs.keys() & values.keys() & predicted.keys():
                pairs[metric].append((predicted[metric], values[metric]))
        return pairs

    def _forget(self) -> None:
        """Clears cached predictions before the device changes."""
        self._learnt, self._estimates = Learnt({}), {}
        for name in ("_joules", "_step_share", "_at_peak", "_slowdown", "_taught_scale"):
            self.__dict__.pop(name, None)

    def _row(self, number: int, design: Design, values: Mapping[str, float]) -> MeasuredRow:
        asked = self._pricer.request(design)
        return MeasuredRow(
            number=number,
            model=design.arch,
            runtime=str(asked.deployment.runtime),
            weights=asked.deployment.weights,
            kv=asked.deployment.kv,
            batch=asked.batch,
            prompt_tokens=asked.prompt_tokens,
            new_tokens=asked.new_tokens,
            ttft_s=values["ttft_p50"],
            tpot_s=values["tpot_p50"],
        )

    @cached_property
    def _taught_scale(self) -> Float64Array:
        """Coefficients (2, 3) that convert the table's TTFT and TPOT to those of full estimates.

        They are a factor on the time, seconds per layer, and constant seconds. Used after teaching, and for requests
        of a single pass. Fitted to the estimates of a sample of the space; decisions on single designs use the design's
        own estimate.
        """
        sample, found = self._sampled(23)
        costs = self._table(sample)
        layers = self._space.values(sample, "depth").astype(float)
        fits = []
        for sheet_s, taught_s in (
            (costs.ttft_s, np.array([each.ttft_s for each in found])),
            (costs.tpot_s, np.array([each.ttft_s if self._one_pass else each.tpot_s for each in found])),
        ):
            columns = np.stack([sheet_s, layers * sheet_s.min(), np.full(len(layers), sheet_s.min())], axis=1)
            fits.append(nnls(columns / taught_s[:, None], np.ones(len(layers))) * [1.0, sheet_s.min(), sheet_s.min()])
        return np.array(fits)

    def estimate(self, design: Design) -> CostEstimate:
        """The full estimate of a design, even if it does not fit in memory."""
        if design not in self._estimates:
            self._estimates[design] = estimate_of(cost_of(self._pricer.request(design).but(device=self.device)), 0)
        return self._estimates[design]


def _least_s(found: CostEstimate) -> tuple[float, float]:
    """Minimum seconds for the FLOPs of a prompt, and for the bytes of a decode step, at the device's peaks."""
    return found.mfu["prefill"] * found.ttft_s, found.mbu["decode"] * found.metrics["itl_p50"].value


def _tail_pairs(known: Sequence[tuple[Design, Mapping[str, float]]]) -> dict[str, list[tuple[Bounds, float]]]:
    """For each P99 metric, pairs of the measured median and the measured P99."""
    return {
        name: [((values[median], None, None), values[name]) for _, values in known if name in values]
        for name, median in TAILS.items()
    }


def open_sheet(spec: RunSpec, space: SearchSpace, folder: RunFolder, on_detail: Callable[[str], None]) -> SheetTarget:
    """Opens a device known by its data sheet or by a taught profile.

    Raises:
        SpecError: The runtime cannot serve designs of the space; the message names the field.
    """
    return sheet_target(spec, space)


def open_ssh(spec: RunSpec, space: SearchSpace, folder: RunFolder, on_detail: Callable[[str], None]) -> SheetTarget:
    """Opens a machine that is measured over ssh and predicted by the data sheet in ``target.like``."""
    host = spec.target.device.removeprefix("ssh:")
    return sheet_target(spec, space, Bench(spec, host=host, prompt_p99=spec.prompt_p99))


def sheet_target(spec: RunSpec, space: SearchSpace, bench: Bench | None = None) -> SheetTarget:
    """The target of a run that names a data sheet.

    Raises:
        SpecError: The runtime cannot serve designs of the space.
    """
    try:
        check_space(space, spec.target.runtime)
    except Unsupported as error:
        raise SpecError(str(error), field="space") from None
    return SheetTarget(
        space,
        stated(spec.target),
        served=spec.target,
        workload=spec.workload,
        seed=spec.seed,
        energy=needs_energy((*spec.limits, *spec.goals)),
        used=bool(shares_asked((*spec.limits, *spec.goals))),
        prompt_p99=spec.prompt_p99,
        ambient_c=ambient_asked(spec),
        source=f"the run {spec.name}",
        bench=bench,
    )


def ambient_asked(spec: RunSpec) -> float | None:
    """Ambient temperature for limits on times under sustained load, by default 25 °C; None without such limits."""
    if all(limit.metric != "tpot_sustained" for limit in spec.limits):
        return None
    return USUAL_C if spec.target.ambient_c is None else spec.target.ambient_c


def needs_energy(wanted: Iterable[Constraint | Objective]) -> bool:
    """Whether a limit or an objective is on watts or joules."""
    return any(item.metric in POWER_METRICS for item in wanted)


def stated(target: TargetSpec) -> DeviceProfile:
    """A target's data sheet with the power and price that the run file states, and one CPU core per thread."""
    sheet = target.named_sheet()
    if on_device(runtime_named(target.runtime), sheet).stack == CORES:
        sheet = with_cores(sheet, target.threads)
    rates = target.rates
    if rates.power_w is not None:
        sheet = replace(sheet, board_power=Power(value=str(target.power), source="stated in the run file"))
    if rates.usd_per_s is not None:
        sheet = replace(sheet, price=PriceRate(value=str(target.price), source="stated in the run file"))
    return sheet
