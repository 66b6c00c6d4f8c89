"""Patches in torch. Axes: B batch, C channels, Y and X rows and columns, T tokens, P patches, D model width."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chipwise.model.kinds.image.stem import CONV_EDGE, CONV_STRIDE, ImageStem
from chipwise.model.nn.precision import compute_format


class Patches(nn.Module):
    """Cuts an image into patches, projects them, and puts the class token before them. The model adds the positions."""

    def __init__(self, stem: ImageStem, d_model: int) -> None:
        super().__init__()
        self.stem = stem
        conv = nn.Conv2d if stem.axes == 2 else nn.Conv1d
        self.convs = nn.ModuleList(
            conv(into, out, CONV_EDGE, stride=CONV_STRIDE, padding=CONV_EDGE // 2) for into, out in stem.conv_shapes()
        )
        self.projection = nn.Linear(stem.values, d_model, bias=stem.bias)
        self.prefix = nn.Embedding(stem.prefix_tokens, d_model) if stem.prefix_tokens else None

    def forward(self, image_BCYX: Tensor) -> Tensor:
        """The class token, if there is one, and the projected patches (B, T, D), without positions."""
        x = compute_format(image_BCYX)
        for conv in self.convs:
            x = F.gelu(conv(x))
        x_BTD = self.projection(cut_patches(x, self.stem.edge))
        if self.prefix is not None:
            prefix = self.prefix.weight.to(x_BTD.dtype).expand(len(x_BTD), -1, -1)
            x_BTD = torch.cat((prefix, x_BTD), dim=1)
        return x_BTD  # type: ignore[no-any-return]


def cut_patches(x_BCYX: Tensor, edge: int) -> Tensor:
    """Cuts images into patches of ``edge`` by ``edge`` pixels, row by row, and flattens each: (B, P, C · edge²).

    A signal (B, C, X) is cut into slices of ``edge`` frames: (B, P, C · edge).
    """
    if x_BCYX.ndim == 3:
        batch, channels, frames = x_BCYX.shape
        return x_BCYX.view(batch, channels, frames // edge, edge).transpose(1, 2).reshape(batch, -1, channels * edge)
    batch, channels, rows, columns = x_BCYX.shape
    parts = x_BCYX.view(batch, channels, rows // edge, edge, columns // edge, edge)
    return parts.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * edge * edge)
