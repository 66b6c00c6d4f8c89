"""Measurement: what a machine answered, with every sample and the state of the machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from chipwise.core.digest import digest, plain
from chipwise.core.errors import MeasurementError, SpecError, UnknownName
from chipwise.core.files import build
from chipwise.core.statistics import percentile_interval
from chipwise.ops.workload import Phase, Workload
from chipwise.profile.drift import NOISE, Drift

SCHEMA = "chipwise.measurement/1"
METRICS = ("ttft_p50", "ttft_p95", "ttft_p99", "tpot_p50", "tpot_p95", "tpot_p99", "peak_memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One model, one workload, one machine. Samples are seconds of wall time, in the order taken, none dropped.

    A ``ttft`` sample is one prefill with the choice of the first token; a ``tpot`` sample is one decode step: feeding
    the token, running the model, choosing the next. An encoder has no such steps: its ``ttft`` samples are passes over
    the text, its ``tpot_s`` is empty.
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
    cpu_s: float  # of the measuring process, over all samples
    peak_memory_bytes: int | None  # most resident memory of the fresh process that served
    energy_j: float | None = None  # None: this machine has no meter
    clean: bool
    reasons: tuple[str, ...] = ()  # why it is not clean
    environment: Mapping[str, Any] = field(default_factory=dict)
    drift: Drift | None = None  # since calibration; None where there was nothing to compare with

    def __post_init__(self) -> None:
        if not self.ttft_s:
            raise SpecError("a measurement needs samples", field="ttft_s")
        if self.clean == bool(self.reasons):
            raise SpecError("an unclean measurement has reasons, a clean one none", field="reasons")

    @property
    def encodes(self) -> bool:
        """Whether this is of an encoder, which generates nothing."""
        return not self.tpot_s

    def percentile(self, quantity: Literal["ttft", "tpot"], share: float) -> float:
        """The sample below which ``share`` of all samples lie, seconds, interpolated between neighbours.

        Raises:
            MeasurementError: Decode steps of an encoder.
        """
        samples = {"ttft": self.ttft_s, "tpot": self.tpot_s}[quantity]
        if not samples:
            raise MeasurementError(f"{self.name} encodes and generates nothing: it has ttft, the pass over a text")
        return float(np.quantile(samples, share))

    def metric(self, name: str) -> float:
        """A metric by its common name, such as ``tpot_p99``, in SI units.

        Raises:
            UnknownName: There is no such metric.
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
        """A metric on the calibration's footing: latencies without the machine's drift since then, SI units.

        A clean measurement is taken as it is while the drift is within what the anchors themselves scatter; of others
        that part of the drift is taken off that stands out from it.

        Raises:
            UnknownName: There is no such metric.
            MeasurementError: This machine could not measure it.
        """
        value = self.metric(name)
        if self.drift is None or name == "peak_memory" or (self.clean and self.drift.size < NOISE):
            return value
        return value / self.drift.believed(Phase.PREFILL if name.startswith("ttft") else Phase.DECODE)

    def corrected_interval(self, name: str) -> tuple[float, float | None, float | None]:
        """:meth:`corrected` with the bounds of its interval: the percentile's own, widened by the drift's doubt.

        A bound is None where the samples do not bound the percentile, or for peak memory.

        Raises:
            UnknownName: There is no such metric.
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
        """What a model of the machine should learn: :meth:`corrected`, from processor time where others were busy.

        With one thread, processor time is what a sample would take if nothing else wanted its core. Where it was not
        kept, the clock's samples have to do.

        Raises:
            UnknownName: There is no such metric.
            MeasurementError: This machine could not measure it.
        """
        value = self.corrected(name)
        processor = self.environment.get(name.replace("_p", "_cpu_p"))
        if self.clean or not processor or name == "peak_memory":
            return value
        return value / self.metric(name) * float(processor)

    @property
    def digest(self) -> str:
        """Identity of everything in it."""
        return digest(self)

    def to_data(self) -> dict[str, Any]:
        """As JSON can hold it."""
        data: dict[str, Any] = plain(self)
        return {"schema": SCHEMA, **data}

    @classmethod
    def from_data(cls, data: object, *, file: str | None = None) -> Measurement:
        """What :meth:`to_data` gave.

        Raises:
            SpecError: The data is not a measurement.
        """
        if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
            raise SpecError(f"not a measurement of this version ({SCHEMA})", file=file)
        return build(cls, {key: value for key, value in data.items() if key != "schema"}, file=file)
