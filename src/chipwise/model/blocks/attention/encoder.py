"""Bidirectional attention in torch. Axes: B batch, T tokens, N heads, H head size, D model width."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from chipwise.model.arch.mixers import Attention
from chipwise.model.nn.attention import LONGEST, full_attention
from chipwise.model.nn.precision import compute_format


class EncoderAttention(nn.Module):
    """Every position attends to all positions that are not padding. Weights are named as in ``AttentionModule``."""

    def __init__(self, block: Attention, d_model: int) -> None:
        super().__init__()
        self.block = block
        self.q = nn.Linear(d_model, block.query_width, bias=block.qkv_bias)
        self.k = nn.Linear(d_model, block.query_width, bias=block.qkv_bias)
        self.v = nn.Linear(d_model, block.query_width, bias=block.qkv_bias)
        self.out = nn.Linear(block.query_width, d_model, bias=block.out_bias)

    def forward(self, x_BTD: Tensor, hidden_BT: Tensor | None = None) -> Tensor:
        """The block's output, without the residual; ``hidden_BT`` is minus infinity at padding, else 0."""
        return self.out(self.mix(x_BTD, hidden_BT))  # type: ignore[no-any-return]

    def mix(self, x_BTD: Tensor, hidden_BT: Tensor | None, bias_1NTT: Tensor | None = None) -> Tensor:
        """Inputs of the output projection, (B, T, N · H); ``bias_1NTT`` is added to the scores of pairs."""
        block = self.block
        x_BTD = compute_format(x_BTD)
        batch, tokens, _ = x_BTD.shape
        q, k, v = (
            part(x_BTD).view(batch, tokens, block.heads, block.head_size).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        if tokens <= LONGEST:
            y = full_attention(q, k, v, hidden_BT, bias_1NTT)
        else:
            mask = None if hidden_BT is None else hidden_BT.to(q.dtype)[:, None, None]
            mask = mask if bias_1NTT is None else bias_1NTT.to(q.dtype)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return y.transpose(1, 2).reshape(batch, tokens, block.query_width)
