"""The convolution module in torch. Axes: B batch, T positions, D model width."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from chipwise.model.arch.mixers import ConvModule
from chipwise.model.nn.precision import compute_format


class ConvModuleBlock(nn.Module):
    """``out(silu(norm(filter(a · sigmoid(b)))))`` where ``a`` and ``b`` are halves of ``into(x)``."""

    def __init__(self, block: ConvModule, d_model: int) -> None:
        super().__init__()
        self.into = nn.Linear(d_model, 2 * d_model, bias=block.bias)
        self.filter = nn.Conv1d(d_model, d_model, block.taps, padding=block.taps // 2, groups=d_model, bias=block.bias)
        self.norm = nn.LayerNorm(d_model)
        self.out = nn.Linear(d_model, d_model, bias=block.bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The block's output, without the residual."""
        gated_BDT = F.glu(self.into(compute_format(x_BTD))).transpose(1, 2)
        y_BTD = self.norm(self.filter(gated_BDT).transpose(1, 2))
        return self.out(F.silu(y_BTD))  # type: ignore[no-any-return]
