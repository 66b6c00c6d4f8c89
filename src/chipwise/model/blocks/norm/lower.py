"""A norm as one operator, which may first add the previous block's result to the residual stream."""

from __future__ import annotations

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.ops.norm import NormOp


def lower(arch: ArchSpec, *, rows: int, skip: bool) -> NormOp:
    """The operator of a norm over the model's width."""
    return NormOp(rows=rows, width=arch.d_model, norm=arch.norm, skip=skip, bias=arch.norm_bias)
