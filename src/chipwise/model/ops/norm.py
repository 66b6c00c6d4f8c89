"""Norms as operators: their FLOPs and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from chipwise.core.dtypes import Size, values_bytes
from chipwise.model.ops.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class NormOp:
    """RMSNorm or LayerNorm of ``rows`` rows of ``width`` values. ``skip`` adds a fused residual addition."""

    kind: ClassVar[str] = "norm"
    rows: Size
    width: Size
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    skip: bool = False
    bias: bool = False
    activations: str = "fp32"

    def work(self) -> Work:
        """FLOPs per value: four for RMSNorm (square, sum, scale, weight), seven for LayerNorm, one for the residual."""
        values = self.rows * self.width
        per_value = (4 if self.norm == "rmsnorm" else 7) + (1 if self.skip else 0) + (1 if self.bias else 0)
        moved = values_bytes(values * (2 if self.skip else 1), self.activations)
        return Work(
            flops=values * per_value,
            weight_bytes=values_bytes(self.width * (2 if self.bias else 1), self.activations),
            read_bytes=moved,
            write_bytes=moved,
        )
