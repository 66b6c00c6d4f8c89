"""Norms in torch."""

from __future__ import annotations

from torch import nn

from chipwise.model.arch.arch import ArchSpec


def make_norm(arch: ArchSpec, width: int | None = None) -> nn.Module:
    """A norm of the kind that ``arch`` uses, over ``width`` values (default: the model's width)."""
    width = width or arch.d_model
    if arch.norm == "rmsnorm":
        return nn.RMSNorm(width, eps=arch.norm_eps)
    return nn.LayerNorm(width, eps=arch.norm_eps, bias=arch.norm_bias)
