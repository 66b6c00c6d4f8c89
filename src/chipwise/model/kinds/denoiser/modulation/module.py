"""Modulation in torch. Axes: B batch, T tokens, F frequencies, D model width."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chipwise.model.kinds.denoiser.modulation.waves import wave_tables


class TimestepEmbedding(nn.Module):
    """Embeds a number from 0 to 1: sinusoids, a matrix, SiLU, a matrix."""

    turns: Tensor
    phases: Tensor

    def __init__(self, frequencies: int, d_model: int) -> None:
        super().__init__()
        turns, phases = wave_tables(frequencies)
        self.register_buffer("turns", torch.tensor(turns), persistent=False)
        self.register_buffer("phases", torch.tensor(phases), persistent=False)
        self.up = nn.Linear(frequencies, d_model)
        self.down = nn.Linear(d_model, d_model)

    def forward(self, number_B: Tensor) -> Tensor:
        """The embeddings (B, D) of numbers (B,)."""
        waves_BF = torch.sin(number_B[:, None].float() * self.turns + self.phases)
        return self.down(F.silu(self.up(waves_BF)))  # type: ignore[no-any-return]


def modulated(normed_BTD: Tensor, shift_BD: Tensor, scale_BD: Tensor) -> Tensor:
    """Scales ``normed`` by 1 + scale, then shifts it."""
    return normed_BTD * (1 + scale_BD[:, None]) + shift_BD[:, None]
