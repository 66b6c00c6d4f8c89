"""Cross-attention in torch. Axes: B batch, T words, S image tokens, N heads, H head size, D model width."""

from __future__ import annotations

from torch import Tensor

from chipwise.model.blocks.projections import Projections
from chipwise.model.nn.attention import full_attention
from chipwise.model.nn.precision import compute_format


class CrossAttention(Projections):
    """Cross-attention of every word to all image tokens. Weights are named as in ``AttentionModule``."""

    def forward(self, x_BTD: Tensor, read_BSD: Tensor) -> Tensor:
        """The block's output, without the residual."""
        x_BTD, read_BSD = compute_format(x_BTD), compute_format(read_BSD)
        q, k, v = self.heads(self.q(x_BTD)), self.heads(self.k(read_BSD)), self.heads(self.v(read_BSD))
        return self.out(full_attention(q, k, v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]
