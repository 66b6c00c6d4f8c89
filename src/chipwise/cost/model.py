"""What an estimate says: seconds and bytes, each with its interval, its parts and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from chipwise.core.errors import UnknownName
from chipwise.cost.memory import MemoryParts
from chipwise.ops import Work


class Bound(StrEnum):
    """What limits an operator."""

    COMPUTE = "compute"
    MEMORY = "memory"
    LAUNCH = "launch"  # the runtime's overhead per node


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCost:
    """One operator's share of a pass."""

    place: str
    kind: str
    latency_s: float
    bound: Bound
    work: Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """A value and the interval in which nine of ten measurements are expected."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """Predicted cost of one design under one workload on one machine."""

    ttft_s: float  # median
    tpot_s: float  # median
    peak_memory_bytes: float
    metrics: dict[str, Predicted]  # ttft_p50, ttft_p99, tpot_p50, tpot_p99, peak_memory
    memory: MemoryParts
    prefill: tuple[OpCost, ...]
    decode: tuple[OpCost, ...]
    model: str  # the cost model and its version
    profile: str  # digest of the machine profile
    device: str
    runtime: str

    def metric(self, name: str) -> Predicted:
        """A metric with its interval, by its common name.

        Raises:
            UnknownName: It is not predicted.
        """
        if name not in self.metrics:
            raise UnknownName("predicted metric", name, self.metrics)
        return self.metrics[name]
