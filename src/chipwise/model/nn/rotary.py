"""Rotary positions in the half-split layout (Su et al. 2021, arXiv:2104.09864; the layout of Llama in transformers).

Axes: B batch, N heads, T tokens, H head size.
"""

from __future__ import annotations

import torch
from torch import Tensor


def tables(head_size: int, max_tokens: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary angles of all positions, each (max_tokens, head_size / 2) in FP32."""
    frequency = theta ** (-torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
    angle = torch.outer(torch.arange(max_tokens, dtype=torch.float64), frequency)
    return angle.cos().float(), angle.sin().float()


def rotate(x_BNTH: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> Tensor:
    """Applies rotary positions to ``x_BNTH``. ``cos_TH`` and ``sin_TH`` have half a head's width.

    The halves are swapped by a roll: with slices, the backward pass would have to fill two tensors with zeros.
    """
    cos = torch.cat((cos_TH, cos_TH), dim=-1).to(x_BNTH.dtype)
    sin = torch.cat((-sin_TH, sin_TH), dim=-1).to(x_BNTH.dtype)
    return x_BNTH * cos + x_BNTH.roll(x_BNTH.shape[-1] // 2, dims=-1) * sin
