"""Attention over an image in torch. Axes: B batch, R windows of an image, N heads, T tokens, D model width."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.attention.encoder import EncoderAttention
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.image.windows.spec import Squares, bias_places, squares_of


class ImageAttention(EncoderAttention):
    """Attention over all positions of an image, or within windows. Weights are named as in ``AttentionModule``.

    ``layer`` is the layer's number: with ``shift``, the windows of every second layer are shifted.
    """

    def __init__(self, block: Attention, d_model: int, stem: ImageStem, layer: int) -> None:
        super().__init__(block, d_model)
        self.squares = squares_of(block, stem, layer)
        places = torch.from_numpy(bias_places(stem, block.square)) if block.relative_buckets else None
        hidden = None if self.squares is None else self.squares.hidden()
        self.register_buffer("places_TT", places, persistent=False)
        self.register_buffer("hidden_RTT", None if hidden is None else torch.from_numpy(hidden), persistent=False)

    def forward(self, x_BTD: Tensor, table_PN: Tensor | None = None) -> Tensor:
        """The block's output, without the residual; ``table_PN`` holds the bias of each distance and head."""
        bias = self.biases(table_PN)
        if self.squares is None:
            return self.out(self.mix(x_BTD, None, bias))  # type: ignore[no-any-return]
        y = self.mix(into_squares(x_BTD, self.squares), None, bias)
        return self.out(from_squares(y, self.squares))  # type: ignore[no-any-return]

    def biases(self, table_PN: Tensor | None) -> Tensor | None:
        """Values added to the scores: (1, N, T, T), or (R, N, T, T) with the mask of shifted windows; None if none."""
        places, hidden = self.get_buffer("places_TT"), self.get_buffer("hidden_RTT")
        found = None if table_PN is None else table_PN[places].permute(2, 0, 1)[None]
        if hidden is None:
            return found
        apart = hidden[:, None].expand(-1, self.block.heads, -1, -1)
        return apart if found is None else found + apart.to(found.dtype)


def into_squares(x_BTD: Tensor, squares: Squares) -> Tensor:
    """Groups positions by window, row by row: (B · windows, side², D), padded with zeros at the grid's edge."""
    batch, _, width = x_BTD.shape
    grid, side, count = squares.grid, squares.side, squares.count
    x = x_BTD.view(batch, grid, grid, width)
    if (room := squares.filled - grid) > 0:
        x = F.pad(x, (0, 0, 0, room, 0, room))
    if squares.shift:
        x = torch.roll(x, (-squares.shift, -squares.shift), (1, 2))
    parts = x.view(batch, count, side, count, side, width).transpose(2, 3)
    return parts.reshape(batch * count**2, side**2, width)


def from_squares(x_BTD: Tensor, squares: Squares) -> Tensor:
    """The inverse of :func:`into_squares`: (B, grid², D)."""
    grid, side, count, width = squares.grid, squares.side, squares.count, x_BTD.shape[-1]
    x = x_BTD.view(-1, count, count, side, side, width).transpose(2, 3)
    x = x.reshape(-1, squares.filled, squares.filled, width)
    if squares.shift:
        x = torch.roll(x, (squares.shift, squares.shift), (1, 2))
    return x[:, :grid, :grid].reshape(-1, grid**2, width)
