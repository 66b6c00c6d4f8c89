"""A projector in torch. Axes: B batch, P patches, T tokens, D model width."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.question.projector.spec import Projector


class ProjectorModule(nn.Module):
    """Turns patches into tokens: averages or joins neighbours, then applies matrices with a GELU between them."""

    def __init__(self, projector: Projector, stem: ImageStem, d_model: int) -> None:
        super().__init__()
        self.projector, self.grid = projector, stem.grid
        shapes = projector.shapes(d_model, stem.axes)
        self.matrices = nn.ModuleList(nn.Linear(into, out, bias=projector.bias) for into, out in shapes)

    def forward(self, x_BPD: Tensor) -> Tensor:
        """Tokens (B, T, D)."""
        pool, join = self.projector.pool, self.projector.join
        x = x_BPD
        if pool * join > 1:
            batch, _, width = x.shape
            side, count = pool * join, self.grid // (pool * join)
            x = x.view(batch, count, side, count, side, width).transpose(2, 3)
            x = x.reshape(batch, count**2, side**2, width)
            x = x.mean(2) if pool > 1 else x.flatten(2)
        for i, matrix in enumerate(self.matrices):
            x = matrix(x if i == 0 else F.gelu(x))
        return x
