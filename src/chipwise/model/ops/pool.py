"""The mean over positions as an operator: its FLOPs and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from chipwise.core.dtypes import Size, values_bytes
from chipwise.model.ops.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOp:
    """The mean of ``positions`` rows of ``width`` values, for each of ``batch`` sequences."""

    kind: ClassVar[str] = "pool"
    batch: Size
    positions: Size
    width: Size
    activations: str = "fp32"

    def work(self) -> Work:
        """FLOPs: one addition per input value, and one division per result."""
        read, written = self.batch * self.positions * self.width, self.batch * self.width
        return Work(
            flops=read + written,
            read_bytes=values_bytes(read, self.activations),
            write_bytes=values_bytes(written, self.activations),
        )
