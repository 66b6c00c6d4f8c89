"""Attention over an image in torch. Axes: B batch, N heads, T tokens, D model width, P distances."""

from __future__ import annotations

import torch
from torch import Tensor

from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.attention.encoder import EncoderAttention
from chipwise.model.kinds.image.distances.spec import bias_places
from chipwise.model.kinds.image.stem import ImageStem


class ImageAttention(EncoderAttention):
    """Attention of every position to all positions of its image. Weights are named as in ``AttentionModule``."""

    def __init__(self, block: Attention, d_model: int, stem: ImageStem) -> None:
        super().__init__(block, d_model)
        places = torch.from_numpy(bias_places(stem)) if block.relative_buckets else None
        self.register_buffer("places_TT", places, persistent=False)

    def forward(self, x_BTD: Tensor, table_PN: Tensor | None = None) -> Tensor:
        """The block's output, without the residual. ``table_PN`` holds one bias for each distance and head."""
        bias = None if table_PN is None else table_PN[self.get_buffer("places_TT")].permute(2, 0, 1)[None]
        return super().forward(x_BTD, bias)
