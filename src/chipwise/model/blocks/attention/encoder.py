"""Bidirectional attention in torch. Axes: B batch, T tokens, N heads, H head size, D model width."""

from __future__ import annotations

from torch import Tensor

from chipwise.model.blocks.projections import Projections
from chipwise.model.nn.attention import full_attention
from chipwise.model.nn.precision import compute_format


class EncoderAttention(Projections):
    """Attention of every position to all positions, or to its chunk. Weights are named as in ``AttentionModule``."""

    def forward(self, x_BTD: Tensor, added: Tensor | None = None) -> Tensor:
        """The block's output, without the residual. ``added``, if given, is added to the scores (B, N, T, T)."""
        shape, x_BTD = x_BTD.shape, compute_format(x_BTD)
        if self.block.chunk is not None:
            x_BTD = x_BTD.reshape(-1, self.block.chunk, shape[2])
        q, k, v = (self.heads(part(x_BTD)) for part in (self.q, self.k, self.v))
        y = full_attention(q, k, v, added)
        return self.out(y.transpose(1, 2).flatten(2)).reshape(shape)  # type: ignore[no-any-return]
