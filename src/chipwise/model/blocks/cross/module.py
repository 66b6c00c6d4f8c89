"""Cross-attention in torch. Axes: B batch, T words, S image tokens, N heads, H head size, D model width."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from chipwise.model.arch.mixers import Attention
from chipwise.model.nn.attention import LONGEST, full_attention
from chipwise.model.nn.precision import compute_format


class CrossAttention(nn.Module):
    """Every word attends to all image tokens. Weights are named as in ``AttentionModule``."""

    def __init__(self, block: Attention, d_model: int) -> None:
        super().__init__()
        self.block = block
        self.q = nn.Linear(d_model, block.query_width, bias=block.qkv_bias)
        self.k = nn.Linear(d_model, block.kv_width, bias=block.qkv_bias)
        self.v = nn.Linear(d_model, block.kv_width, bias=block.qkv_bias)
        self.out = nn.Linear(block.query_width, d_model, bias=block.out_bias)

    def forward(self, x_BTD: Tensor, read_BSD: Tensor) -> Tensor:
        """The block's output, without the residual."""
        x_BTD, read_BSD = compute_format(x_BTD), compute_format(read_BSD)
        q, k, v = self.heads(self.q(x_BTD)), self.heads(self.k(read_BSD)), self.heads(self.v(read_BSD))
        short = read_BSD.shape[1] <= LONGEST
        y = full_attention(q, k, v, None) if short else F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def heads(self, x_BTW: Tensor) -> Tensor:
        """Values of each head, (B, N, T, H)."""
        return x_BTW.view(*x_BTW.shape[:2], -1, self.block.head_size).transpose(1, 2)
