"""A norm as one operator; every norm but the first also adds the block before it to the residual stream."""

from __future__ import annotations

from chipwise.ops import NormOp
from chipwise.spec import ArchSpec


def lower(arch: ArchSpec, *, rows: int, skip: bool) -> NormOp:
    """The norm over the model's width."""
    return NormOp(rows=rows, width=arch.d_model, norm=arch.norm, skip=skip, bias=arch.norm_bias)
