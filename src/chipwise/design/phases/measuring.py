"""Measures candidates of a run: exports and times them, and records the results.

``measurement_choice.py`` decides which candidates are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

from chipwise.core.digest import plain
from chipwise.core.record import Record
from chipwise.deploy.measure.measurement import Measurement
from chipwise.design.limits import MEASURED_METRICS, Constraint, derived, derived_intervals, with_gaps
from chipwise.design.phases.limits import HEADROOM, no_slower_than, within, worst_excess
from chipwise.design.phases.measurement_choice import worth_measuring
from chipwise.design.run.folder import RunFolder
from chipwise.design.run.spec import RunSpec
from chipwise.design.run.trials import Candidate, Trials
from chipwise.design.targets.chance import Bounds, kept, values_of
from chipwise.design.targets.prompts import KEPT, LONGEST, measured_over_prompts
from chipwise.design.targets.target import Target
from chipwise.design.targets.utilisation import measured_shares
from chipwise.errors import MeasurementError
from chipwise.model.space.designs import summary
from chipwise.predict.cost.spending import Rates, spent
from chipwise.training.tasks.metric import Request

PERCENTILES = ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99")


class Measurer(Protocol):
    """Decides by measurement whether candidates meet the limits."""

    def within_limits(self, item: Candidate) -> bool:
        """Whether a candidate meets the limits; measures it first if that is worthwhile and was not done yet."""
        ...

    def beyond(self, item: Candidate) -> float:
        """Largest known relative excess of a candidate over a limit."""
        ...


class CandidateMeasurer:
    """Decides whether candidates meet the limits, by measurement if possible and worthwhile.

    Measurements are recorded, and the target learns from them.

    Args:
        trials: The run's trials.
        spec: The run.
        folder: The run's folder.
        target: Predicts costs, measures if it can, and learns from every measurement.
        on_progress: Called with a description of the current step.
    """

    def __init__(
        self,
        trials: Trials,
        spec: RunSpec,
        folder: RunFolder,
        target: Target,
        *,
        on_progress: Callable[[str], None] = lambda detail: None,
    ) -> None:
        self._trials, self._spec, self._folder = trials, spec, folder
        self._target, self._on_progress = target, on_progress
        self._learn()

    def within_limits(self, item: Candidate) -> bool:
        """Whether a candidate meets the limits; measures it first if that is worthwhile and was not done yet."""
        now = self._trials[item.number]
        if (
            now.notes.within is None and now.measured is not None and self._target.measures
        ):  # measured under other limits
            return self._judge(now.number)
        return self.measure(item) if now.notes.within is None else now.notes.within

    def beyond(self, item: Candidate) -> float:
        """Largest known relative excess of a candidate over a limit."""
        limits = (*self._spec.limits, *self._target.limits, *self._pace_of(item))
        return worst_excess(limits, self._trials[item.number].costs)

    def _judge(self, number: int) -> bool:
        """Whether a candidate meets the current limits, by measurement or else by prediction.

        A final measurement is judged without headroom. A measurement on a busy machine alone does not exclude a
        candidate, because the final measurement will decide.
        """
        item = self._trials[number]
        limits = (*self._spec.limits, *self._target.limits, *self._pace_of(item))
        expected, headroom = values_of(self.predict(item)), 1.0 if item.notes.final else HEADROOM
        good = within(limits, expected | (item.measured or {}), headroom=headroom)
        good = good or (item.notes.clean is False and within(limits, expected, headroom=HEADROOM))
        self._trials.note(number, within=good)
        return good

    def predict(self, item: Candidate) -> Mapping[str, Bounds]:
        """The target's current predictions for a candidate."""
        return self._target.predict(item.design)

    def measure(self, item: Candidate, because: str | None = None) -> bool:
        """Whether a candidate meets the limits; measures it if worthwhile, or if ``because`` gives a reason.

        A measurement is recorded if it is the first one or quieter than the previous one. The prediction that was
        stored first is not changed. The current prediction, which may already use measurements of this candidate, is
        recorded as ``believed_now``.
        """
        believed = self.predict(item)
        limits, pace = (*self._spec.limits, *self._target.limits), self._pace_of(item)
        if not self._target.measures:
            good = kept(limits, believed, item.measured or {}, self._spec.confidence_share)
            good = good and within(pace, values_of(believed))  # both predictions share the device's error
            self._trials.note(item.number, believed_now=believed, within=good)
            return good
        mode = "measured" if item.is_reference and self._spec.profiling == "hybrid" else self._spec.profiling
        novelty = self._target.novelty(item.design)
        why = because or worth_measuring(mode, believed, (*limits, *pace), novelty=novelty, headroom=HEADROOM)
        if why is None:
            self._trials.note(item.number, believed_now=believed)
            return self._judge(item.number)
        self._on_progress(f"measuring {summary(item.design)}")
        try:
            found = self._target.measure(item.design, self._folder.trial(item.number))
        except MeasurementError as error:
            self._trials.fail(item.number, str(error))
            return False
        notes = run_notes(self._spec, found, final=False, predicted=believed)
        loudest = item.notes.loudness
        if item.measured is not None and loudest is not None and loudness_of(notes) >= loudest:
            return self.within_limits(item)  # the quieter of two measurements is used
        self._trials.note(item.number, **notes, believed_now=believed, measured_because=why)
        good = self._judge(item.number)
        self._learn()
        return good

    def _pace_of(self, item: Candidate) -> tuple[Constraint, ...]:
        """The limit that keeps a candidate at least as fast as the reference design.

        Empty for reference designs, and in a run that trains one model, which is not compared with a trained reference.
        """
        if item.is_reference or self._spec.allowance.alone:
            return ()
        limits = (*self._spec.limits, *self._target.limits)
        pace = self._spec.task_settings.latency_metric
        return no_slower_than(self._references(), limits, measured=self._target.measures, pace=pace)

    def _references(self) -> list[Candidate]:
        """Of the reference designs that meet the limits as measured or predicted, those that were trained longest."""
        known = [item for item in self._trials.all() if item.is_reference and item.alive and not item.notes.earlier]
        known = [item for item in known if item.measured or not self._target.measures]
        found = [item for item in known if item.notes.within is not False]
        longest = max((len(item.rungs) for item in found), default=0)
        return [item for item in found if len(item.rungs) == longest]

    def _learn(self) -> None:
        """Updates the target's predictions with all measurements of the run."""
        self._target.learn(self._trials.measured())


def metrics_of(
    measurement: Measurement, reading: Callable[[Measurement, str], float] = Measurement.metric
) -> dict[str, float]:
    """Every measured metric as ``reading`` returns it: uncorrected, corrected for drift, or at undisturbed speed."""
    found = {}
    for name in sorted(MEASURED_METRICS):
        try:
            found[name] = reading(measurement, name)
        except MeasurementError:
            continue
    return found


def bounds_of(measurement: Measurement, *, final: bool) -> dict[str, list[float | None]]:
    """The 95 % interval of each percentile; an end is None if there are too few samples.

    Like the notes' ``measured`` values, intervals of final measurements are uncorrected.
    """
    found: dict[str, list[float | None]] = {}
    for name in PERCENTILES:
        try:
            value, low, high = measurement.corrected_interval(name)
        except MeasurementError:
            continue
        scale = measurement.metric(name) / value if final else 1.0
        found[name] = [None if end is None else end * scale for end in (low, high)]
    return found


def measurement_notes(
    measurement: Measurement,
    rates: Rates,
    *,
    final: bool,
    request: Request | None = None,
    predicted: Mapping[str, Bounds] = MappingProxyType({}),
    prompt_p99: int | None = None,
) -> dict[str, object]:
    """Notes of a measurement, to be stored with its trial.

    ``measured`` is uncorrected in final measurements and corrected for drift in earlier ones; the cost model learns
    from ``settled``. Energy is measured if the processor has an energy counter that can be read; dollars are computed
    from measured medians and the stated price. Derived metrics are computed if ``request`` is given. ``predicted``
    contains the target's MFU and MBU, and the predicted times from which they follow. Gaps between tokens are noted if
    they were predicted. With ``prompt_p99``, P99 times and memory refer to all prompt lengths, and are missing if
    prompts of the P99 length were not measured.
    """
    measured = metrics_of(measurement, Measurement.metric if final else Measurement.corrected)
    metered = Rates(power_w=measured_w(measurement), usd_per_s=rates.usd_per_s)
    costs = {}
    if not measurement.encodes:
        costs = spent(measured["ttft_p50"], measured["tpot_p50"], measurement.workload, metered)
    bounds: dict[str, Bounds] = dict(bounds_of(measurement, final=final))
    costs |= measured_shares(predicted, measured)
    if prompt_p99 is not None:
        measured, bounds = measured_over_prompts(measured, bounds, measurement.environment.get(LONGEST))
    if (kept := measurement.environment.get(KEPT)) and "tpot_sustained" in predicted:
        costs["tpot_sustained"] = measured["tpot_p50"] / kept
    if request is not None:
        costs |= derived(measured, request)
        bounds |= derived_intervals(bounds, request)
    return {
        "measured": with_gaps(measured | costs, predicted),
        "measured_bounds": with_gaps(bounds, predicted),
        "settled": metrics_of(measurement, Measurement.settled),
        "drift": None if measurement.drift is None else plain(measurement.drift),
        "clean": measurement.clean,
        "unclean_because": tuple(measurement.reasons),
        "loudness": measurement.noise_level,
        "runtime_version": measurement.runtime_version,
        "final": final and measurement.clean,
    }


def run_notes(
    spec: RunSpec, measurement: Measurement, *, final: bool, predicted: Mapping[str, Bounds]
) -> dict[str, object]:
    """The :func:`measurement_notes` for a run, with the run's power, price, request and P99 of prompt tokens."""
    return measurement_notes(
        measurement, spec.target.rates, final=final, request=spec.space, predicted=predicted, prompt_p99=spec.prompt_p99
    )


def loudness_of(notes: Mapping[str, object]) -> float:
    """How much the machine was disturbed during a recorded measurement; below 1, the measurement is clean."""
    return Record(notes).get("loudness", float)


def measured_w(measurement: Measurement) -> float | None:
    """Mean power of the processor packages during sampling, in watts; None if no energy counter was read."""
    rounds = measurement.environment.get("rounds", [measurement.environment])
    walls = [part.get("wall_s") for part in rounds]
    if measurement.energy_j is None or None in walls:
        return None
    return measurement.energy_j / float(sum(walls))
