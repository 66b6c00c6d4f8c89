"""What an estimate says: seconds and bytes, each with its interval, its parts and where it comes from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from chipwise.core import units
from chipwise.core.errors import UnknownName
from chipwise.core.results import Result
from chipwise.cost.memory import MemoryParts
from chipwise.ops import Work


class Bound(StrEnum):
    """What limits an operator."""

    COMPUTE = "compute"
    MEMORY = "memory"
    LINK = "link"  # communication between devices
    LAUNCH = "launch"  # the runtime's overhead per node


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCost:
    """One operator's share of a pass: ``count`` calls of it together, their work being that of one."""

    place: str
    kind: str
    latency_s: float
    bound: Bound
    work: Work
    count: int = 1
    compute_s: float | None = None  # all calls at the dense peak of a data sheet; as calibrated, the part that computes
    memory_s: float | None = None  # all calls' bytes at the memory's bandwidth; as calibrated, the part that streams
    launch_s: float | None = None
    doubt: float = 0.0  # log half-width of what rests on published timings or on none; such operators err together


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """A value and the interval in which nine of ten measurements are expected; no ends where it was not validated."""

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def around(cls, value: float, log_halfwidth: float | None) -> Predicted:
        """``value`` within a factor either way; without an interval where ``log_halfwidth`` is None."""
        if log_halfwidth is None:
            return cls(value=value)
        factor = math.exp(log_halfwidth)
        return cls(value=value, low=value / factor, high=value * factor)

    @property
    def log_halfwidth(self) -> float | None:
        """The logarithm of how many times the upper end is above the value; None where there is no interval."""
        return None if self.high is None else math.log(self.high / self.value)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CostEstimate(Result):
    """Predicted cost of one design under one workload on one machine, or on several that share it.

    ``memory_bytes`` says what one device holds, ``memory`` what a calibrated process does. Energy and price are absent
    where nobody publishes what they need; ``notes`` say so.
    """

    ttft_s: float  # median
    tpot_s: float  # median
    peak_memory_bytes: float
    metrics: dict[str, Predicted]  # by name, such as ttft_p50, tpot_p50, peak_memory
    memory: MemoryParts | None = None
    prefill: tuple[OpCost, ...]
    decode: tuple[OpCost, ...]
    model: str  # the cost model and its version
    profile: str | None = None  # digest of the machine profile
    device: str
    runtime: str
    devices: int = 1
    memory_bytes: dict[str, float] = field(default_factory=dict)
    bound: Bound | None = None  # of the decode step as a whole
    mfu: dict[str, float] = field(default_factory=dict)  # by phase: FLOPs done over what the dense peak allows
    mbu: dict[str, float] = field(default_factory=dict)  # by phase: bytes moved over what the bandwidth allows
    provenance: str = "predicted"
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """What a request takes, and the tree of its operators with shares and bounds."""
        from chipwise.cost.breakdown import text

        return text(self)

    def headline(self) -> str:
        """The device, the runtime and the times."""
        times = ", ".join(
            f"{name.upper()} {units.show(value, 'time')}"
            for name, value in (("ttft", self.ttft_s), ("tpot", self.tpot_s))
            if value
        )
        several = f"{self.devices} x " if self.devices > 1 else ""
        return f"{several}{self.device}, {self.runtime}: {times}; {self.provenance}"

    def rows(self) -> list[dict[str, object]]:
        """One row a metric, with its 90 % interval."""
        return [
            {"metric": name, "value": item.value, "low": item.low, "high": item.high}
            for name, item in self.metrics.items()
        ]

    def metric(self, name: str) -> Predicted:
        """A metric with its interval, by its common name.

        Raises:
            UnknownName: It is not predicted.
        """
        if name not in self.metrics:
            raise UnknownName("predicted metric", name, self.metrics)
        return self.metrics[name]
