"""Item embeddings and attention over a request in torch.

Axes: B batch, T positions (S of them in the history), J an item and its tags, N heads, H head size, D model width.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.ranking.stem import RankingStem
from chipwise.model.nn.precision import compute_format

HIDDEN = -1e9  # added to the scores of masked pairs


class Items(nn.Module):
    """Embeds items and their tags."""

    def __init__(self, stem: RankingStem, d_model: int) -> None:
        super().__init__()
        width = stem.table_width(d_model)
        self.items = nn.Embedding(stem.items + 1, width)
        self.tags = nn.Embedding(stem.tags + 1, width) if stem.bag else None
        self.projection = nn.Linear(stem.values, d_model, bias=stem.bias) if stem.width else None

    def forward(self, ids_BTJ: Tensor) -> Tensor:
        """The first layer's input (B, T, D) for items ``ids_BTJ[..., 0]`` with tags ``ids_BTJ[..., 1:]``."""
        x_BTD = self.items(ids_BTJ[..., 0])
        tags = None if self.tags is None else self.tags(ids_BTJ[..., 1:]).sum(2)
        if self.projection is None:
            return x_BTD if tags is None else x_BTD + tags  # type: ignore[no-any-return]
        joined = x_BTD if tags is None else torch.cat((x_BTD, tags), dim=-1)
        return self.projection(compute_format(joined))  # type: ignore[no-any-return]


class RequestAttention(nn.Module):
    """Attention of every position to itself and to the history before it. Weights are named as in ``AttentionModule``.

    A learned bias per distance is added to the scores. Pointwise attention (HSTU) applies SiLU to its projections and
    to each score, divides by the maximum number of attended positions, and norms and gates the result.
    """

    def __init__(self, block: Attention, d_model: int, eps: float) -> None:
        super().__init__()
        self.block = block
        width = block.query_width
        self.q = nn.Linear(d_model, width, bias=block.qkv_bias)
        self.k = nn.Linear(d_model, width, bias=block.qkv_bias)
        self.v = nn.Linear(d_model, width, bias=block.qkv_bias)
        self.gate = nn.Linear(d_model, width, bias=block.qkv_bias) if block.pointwise else None
        self.norm = nn.RMSNorm(width, eps=eps) if block.pointwise else None
        self.out = nn.Linear(width, d_model, bias=block.out_bias)

    def forward(self, x_BTD: Tensor, bias_NTS: Tensor, hidden_TS: Tensor, own_N: Tensor) -> Tensor:
        """The block's output, without the residual.

        Args:
            x_BTD: States of the positions; the first S are the history.
            bias_NTS: Added to the score of each position with each history position.
            hidden_TS: True where a position may not attend to a history position.
            own_N: Added to the score of each position with itself.
        """
        block, seen = self.block, hidden_TS.shape[1]
        x_BTD = compute_format(x_BTD)
        batch, tokens, _ = x_BTD.shape

        def heads(part: nn.Module) -> Tensor:
            y = part(x_BTD)
            y = F.silu(y) if block.pointwise else y
            return y.view(batch, tokens, block.heads, block.head_size).transpose(1, 2)

        q, k, v = heads(self.q) / math.sqrt(block.head_size), heads(self.k), heads(self.v)
        scores_BNTS = q @ k[:, :, :seen].transpose(2, 3) + bias_NTS.to(q.dtype)
        own_BNT1 = (q * k).sum(-1, keepdim=True) + own_N.to(q.dtype)[:, None, None]
        if self.gate is None or self.norm is None:
            scores = torch.cat((scores_BNTS.masked_fill(hidden_TS, HIDDEN), own_BNT1), dim=-1)
            share = torch.softmax(scores, dim=-1, dtype=q.dtype)
        else:
            scores = torch.cat((F.silu(scores_BNTS).masked_fill(hidden_TS, 0.0), F.silu(own_BNT1)), dim=-1)
            share = scores / (seen + 1)
        y = share[..., :seen] @ v[:, :, :seen] + share[..., seen:] * v
        y = y.transpose(1, 2).reshape(batch, tokens, block.query_width)
        if self.gate is not None and self.norm is not None:
            y = self.norm(y) * F.silu(self.gate(x_BTD))
        return self.out(y)  # type: ignore[no-any-return]
