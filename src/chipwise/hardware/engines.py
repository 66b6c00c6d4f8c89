"""Engines, memory levels and links of a chip, as published."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from chipwise.core.dtypes import DType
from chipwise.errors import SpecError
from chipwise.hardware.facts import Bandwidth, Count, Frequency, Rate, Size, Tile

_DTYPES = frozenset(DType)
LEVELS = ("registers", "l1", "l2", "l3", "dram", "host")  # ordered from the arithmetic units outwards


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Multiply-add units of one kind: a chip's matrix units, its vector units, or an NPU.

    ``units`` and ``fma_per_clock`` (dense, per unit) are set if published; ``clock`` is the clock for which the stated
    peaks are valid. If all three are known, the peak follows from them.
    """

    name: str
    kind: Literal["matrix", "vector"]
    part: Literal["gpu", "npu", "cpu", "tpu"]
    unit: str = ""
    units: Count | None = None
    clock: Frequency | None = None
    fma_per_clock: dict[str, Count] = field(default_factory=dict)
    peak: dict[str, Rate] = field(default_factory=dict)
    tile: dict[str, Tile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for table in ("fma_per_clock", "peak", "tile"):
            for dtype in getattr(self, table):
                if dtype not in _DTYPES:
                    names = ", ".join(item.value for item in DType)
                    raise SpecError(f"unknown number format; known: {names}", field=f"{table}.{dtype}")

    def derived(self, dtype: str) -> float | None:
        """Peak as units × multiply-adds per clock × 2 × clock; None if one of these is not published."""
        fma = self.fma_per_clock.get(dtype)
        if fma is None or self.units is None or self.clock is None:
            return None
        return self.units.number * fma.number * 2 * self.clock.number

    def rate(self, dtype: str) -> float | None:
        """Dense peak in operations per second: the stated peak, else the derived peak, else None."""
        stated = self.peak.get(dtype)
        return stated.number if stated is not None else self.derived(dtype)

    def dtypes(self) -> list[DType]:
        """The number formats for which this engine has a rate, widest first."""
        return [dtype for dtype in DType if self.rate(dtype) is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLevel:
    """One level of memory. If ``per`` is ``unit``, each SM, CU or core has its own instance of size ``capacity``.

    ``bandwidth`` is for all instances together. If it is not stated, it follows from one instance's
    ``bytes_per_clock``.
    """

    name: Literal["registers", "l1", "l2", "l3", "dram", "host"]
    technology: str = ""
    per: Literal["unit", "device"] = "device"
    capacity: Size | None = None
    bandwidth: Bandwidth | None = None
    bytes_per_clock: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link to another device, the host or the network. The bandwidth is one way, over all lanes."""

    name: str
    to: Literal["device", "host", "network"]
    bandwidth: Bandwidth
