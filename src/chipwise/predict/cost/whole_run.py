"""Estimates from formulas fitted to whole runs, not to kernels. Used for diffusion models and for models on phones."""

from __future__ import annotations

from dataclasses import dataclass, field

from chipwise.core import units
from chipwise.core.results import Result
from chipwise.predict.cost.model import Predicted


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunEstimate(Result):
    """Predicted cost of one run of a model, or of a part of the model, on one or several devices.

    ``metrics`` maps names such as ``latency_s``, ``power_w`` and ``joules_per_picture`` to values in SI units, with
    90 % intervals.
    """

    model: str
    part: str = ""  # part of the model; empty for the whole model
    setting: str  # the request in words: sizes, formats
    device: str
    runtime: str
    devices: int = 1
    metrics: dict[str, Predicted]
    provenance: str
    notes: tuple[str, ...] = ()
    parameters: dict[str, int] = field(default_factory=dict)  # number of parameters by part of the model, if known
    shares: dict[str, float] = field(default_factory=dict)  # share of the time by cause, if known

    @property
    def latency_s(self) -> float:
        """Median seconds of the run."""
        return self.metrics["latency_s"].value

    def headline(self) -> str:
        """The model, the device, the runtime and the time."""
        several = f"{self.devices} x " if self.devices > 1 else ""
        own = f"{self.model}, {self.part}" if self.part else self.model
        seconds = self.metrics["latency_s"]
        between = units.span(seconds.value, seconds.low, seconds.high, "time")
        return f"{own} on {several}{self.device}, {self.runtime}: {between}; {self.provenance}"

    def rows(self) -> list[dict[str, object]]:
        """One row per metric, with its 90 % interval."""
        return [
            {"model": self.model, "part": self.part, "metric": name}
            | {"value": item.value, "low": item.low, "high": item.high}
            for name, item in self.metrics.items()
        ]
