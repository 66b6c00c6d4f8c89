"""A measurement: all latency samples of one model, its memory, and the state of the machine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from chipwise.core.digest import digest, plain
from chipwise.core.fields import later
from chipwise.core.files import build
from chipwise.core.results import Result
from chipwise.core.statistics import own_speed, percentile_interval
from chipwise.deploy.measure.drift import NOISE, OLD_NAMES, Drift
from chipwise.deploy.measure.verdict import judge
from chipwise.errors import MeasurementError, SpecError, UnknownName
from chipwise.model.ops.workload import Phase, Workload

SCHEMA = "chipwise.measurement/1"
MOST_THREADS = 2**20
MOST_BYTES = 2**62
METRICS = ("ttft_p50", "ttft_p95", "ttft_p99", "tpot_p50", "tpot_p95", "tpot_p99", "itl_p50", "itl_p99", "peak_memory")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Measurement(Result):
    """A model measured under one workload on one machine. Samples are wall seconds in the order taken; none are
    dropped.

    A ``ttft`` sample is one prefill including the choice of the first token. A ``tpot`` sample is one decode step:
    passing the token to the model, running it, and choosing the next token. An encoder has no decode steps: its
    ``ttft`` samples are passes over the text, and ``tpot_s`` is empty.

    Raises:
        SpecError: A time is not a positive finite number, there are no samples, or ``reasons`` contradicts ``clean``.
    """

    design: str  # digest of the design
    name: str
    runtime: str
    runtime_version: str
    threads: int
    workload: Workload
    device: str
    ttft_s: tuple[float, ...]
    tpot_s: tuple[float, ...]
    cpu_s: float  # CPU seconds of the measuring process over all samples
    peak_memory_bytes: int | None  # peak resident memory of the measuring process
    energy_j: float | None = None  # None if this machine has no power meter
    clean: bool
    reasons: tuple[str, ...] = ()  # why it is not clean
    environment: Mapping[str, Any] = field(default_factory=dict)
    drift: Drift | None = None  # since calibration; None without a calibration to compare with
    own_drift: Drift | None = later(None)  # noqa: RUF009  (of the machine's own speed, undisturbed)
    steps_per_sample: int = later(1)  # decode steps averaged in one ``tpot`` sample

    def __post_init__(self) -> None:
        if not self.ttft_s:
            raise SpecError("a measurement needs samples", field="ttft_s")
        for name in ("ttft_s", "tpot_s"):
            wrong = next((value for value in getattr(self, name) if not 0 < value < math.inf), None)
            if wrong is not None:
                raise SpecError(f"a time must be a positive, finite number of seconds, not {wrong}", field=name)
        if not 0 <= self.cpu_s < math.inf:
            raise SpecError(f"must be a finite number of seconds of at least 0, not {self.cpu_s}", field="cpu_s")
        if not 1 <= self.threads <= MOST_THREADS:
            raise SpecError(f"must be from 1 to {MOST_THREADS}", field="threads")
        if not self.steps_per_sample >= 1:
            raise SpecError("must be at least 1", field="steps_per_sample")
        for name, most in (("peak_memory_bytes", MOST_BYTES), ("energy_j", math.inf)):
            value = getattr(self, name)
            if value is not None and not 0 < value < most:
                raise SpecError("must be a positive, finite number", field=name)
        if self.clean == bool(self.reasons):
            raise SpecError("an unclean measurement must have reasons, and a clean one must have none", field="reasons")

    def headline(self) -> str:
        """The model, runtime and machine."""
        quiet = "clean" if self.clean else f"not clean: {'; '.join(self.reasons)}"
        return f"{self.name} in {self.runtime} on {self.device} ({quiet})"

    def rows(self) -> list[dict[str, object]]:
        """One row per metric that could be measured, in SI units."""
        known = [name for name in METRICS if not (self.encodes and name.startswith(("tpot", "itl")))]
        if self.steps_per_sample > 1:
            known = [name for name in known if name not in ("tpot_p95", "tpot_p99", "itl_p99")]
        if self.peak_memory_bytes is None:
            known.remove("peak_memory")
        return [{"metric": name, "measured": self.metric(name)} for name in known]

    @property
    def encodes(self) -> bool:
        """Whether the model generates no tokens, like an encoder."""
        return not self.tpot_s

    def percentile(self, quantity: Literal["ttft", "tpot"], share: float) -> float:
        """The ``share`` quantile of all samples in seconds, interpolated between neighbours.

        Raises:
            MeasurementError: ``quantity`` is ``tpot``, and the model is an encoder, or its decode steps were timed in
                groups and ``share`` is not 0.5.
        """
        samples = {"ttft": self.ttft_s, "tpot": self.tpot_s}[quantity]
        if not samples:
            raise MeasurementError(f"{self.name} generates no tokens; use ttft, the time of a pass over its input")
        if quantity == "tpot" and self.steps_per_sample > 1 and share != 0.5:
            raise MeasurementError(
                f"{self.runtime_version} gives only means over {self.steps_per_sample} decode steps; for single steps, "
                "nothing but an approximate median is known"
            )
        return float(np.quantile(samples, share))

    def metric(self, name: str) -> float:
        """A metric by its common name, such as ``tpot_p99``, in SI units.

        Raises:
            UnknownName: No such metric is known.
            MeasurementError: This machine could not measure it.
        """
        if name not in METRICS:
            raise UnknownName("measured metric", name, METRICS)
        if name == "peak_memory":
            if self.peak_memory_bytes is None:
                raise MeasurementError("peak memory could not be read on this machine")
            return float(self.peak_memory_bytes)
        quantity, share = name.split("_p")
        return self.percentile("ttft" if quantity == "ttft" else "tpot", int(share) / 100)

    def corrected(self, name: str) -> float:
        """A metric in SI units, with latencies corrected for the drift since calibration.

        A clean measurement with a drift below ``NOISE`` is not corrected, because reference work varies that much even
        on a quiet machine. In other measurements, medians are taken over undisturbed moments if calibration recorded
        the undisturbed speed. All other latencies are divided by the drift, which is first shrunk towards 1
        (:meth:`Drift.shrunken`).

        Raises:
            UnknownName: No such metric is known.
            MeasurementError: This machine could not measure it.
        """
        value = self.metric(name)
        if self.drift is None or name == "peak_memory" or (self.clean and self.drift.size < NOISE):
            return value
        if name.endswith("_p50") and self.own_drift is not None:
            return self._undisturbed(name, self.own_drift)
        return value / self.drift.shrunken(_phase(name))

    def _undisturbed(self, name: str, drifted: Drift) -> float:
        """A median over moments when the machine ran undisturbed."""
        self.metric(name)  # raises an error for an unknown metric
        level = own_speed(self.ttft_s if name.startswith("ttft") else self.tpot_s)
        return level if drifted.size < NOISE else level / drifted.shrunken(_phase(name))

    def corrected_interval(self, name: str) -> tuple[float, float | None, float | None]:
        """:meth:`corrected` with its interval: the percentile's interval, widened by the uncertainty of the drift.

        A bound is None for peak memory, and if there are too few samples to bound the percentile.

        Raises:
            UnknownName: No such metric is known.
            MeasurementError: This machine could not measure it.
        """
        value = self.corrected(name)
        if name == "peak_memory":
            return value, None, None
        samples = self.ttft_s if name.startswith("ttft") else self.tpot_s
        own = percentile_interval(samples, int(name.split("_p")[1]) / 100)
        wide = math.exp(self.drift.log_halfwidth) if self.drift is not None else 1.0
        factor = value / self.metric(name)
        low = None if own.low is None else own.low * factor / wide
        high = None if own.high is None else own.high * factor * wide
        return value, low, high

    def settled(self, name: str) -> float:
        """The value to which the cost model is fitted.

        Medians are taken over undisturbed moments (:func:`chipwise.core.statistics.own_speed`) if calibration recorded
        the undisturbed speed. All other values are :meth:`corrected`. If the machine was busy, the correction is
        applied to processor time if it was recorded, else to wall time. With one thread, processor time excludes the
        time that other processes used the core.

        Raises:
            UnknownName: No such metric is known.
            MeasurementError: This machine could not measure it.
        """
        if name.endswith("_p50") and self.own_drift is not None:
            return self._undisturbed(name, self.own_drift)
        value = self.corrected(name)
        processor = self.environment.get(name.replace("_p", "_cpu_p"))
        if self.clean or not processor or name == "peak_memory":
            return value
        return value / self.metric(name) * float(processor)

    @property
    def noise_level(self) -> float:
        """The worst ratio of a reading of the machine's load to its limit; below 1, the measurement is clean."""
        known = [{name: v for name, v in each.items() if isinstance(v, int | float)} for each in self._rounds]
        return max(judge(each).score for each in known)

    @property
    def instructions(self) -> str:
        """The processor's instruction set as named in ``hardware/detect.py``, or unknown."""
        return str(self._rounds[0].get("instructions") or "unknown")

    @property
    def _rounds(self) -> Sequence[Mapping[str, Any]]:
        """The environment of each round of a joined measurement; a list of one otherwise."""
        found: Sequence[Mapping[str, Any]] = self.environment.get("rounds", [self.environment])
        return found

    @property
    def digest(self) -> str:
        """Hash of the whole content."""
        return digest(self)

    def to_data(self) -> dict[str, Any]:
        """The measurement as plain data for JSON."""
        data: dict[str, Any] = plain(self)
        return {"schema": SCHEMA, **data}

    @classmethod
    def from_data(cls, data: object, *, file: str | None = None) -> Measurement:
        """Reads a measurement from the output of :meth:`to_data`.

        Raises:
            SpecError: The data is not a measurement.
        """
        if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
            raise SpecError(f"not a measurement of this version ({SCHEMA})", file=file)
        fields = {key: value for key, value in data.items() if key != "schema"}
        if isinstance(since := fields.get("drift"), Mapping):
            fields["drift"] = {OLD_NAMES.get(str(key), key): value for key, value in since.items()}
        return build(cls, fields, file=file)


def _phase(name: str) -> Phase:
    return Phase.PREFILL if name.startswith("ttft") else Phase.DECODE
