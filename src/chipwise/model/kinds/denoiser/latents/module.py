"""The latent decoder in torch. Axes: B batch, L latent channels, C channels, Y and X rows and columns."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chipwise.model.kinds.denoiser.latents.spec import KERNEL, Latents


class Decoder(nn.Module):
    """Decodes latents (B, L, Y, X) to images (B, C, factor · Y, factor · X). Frozen in the denoiser's training."""

    def __init__(self, latents: Latents, channels: int) -> None:
        super().__init__()
        self.factor = latents.factor
        shapes = latents.shapes(channels)
        self.convs = nn.ModuleList([nn.Conv2d(into, out, KERNEL, padding=KERNEL // 2) for into, out in shapes])

    def forward(self, x_BLYX: Tensor) -> Tensor:
        """The decoded images."""
        first, second = self.convs
        with torch.autocast(x_BLYX.device.type, enabled=False):
            return F.pixel_shuffle(second(F.gelu(first(x_BLYX.float()))), self.factor)
