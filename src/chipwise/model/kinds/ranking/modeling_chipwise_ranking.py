"""A ranking model for ``AutoModel`` with ``trust_remote_code=True``.

It needs ``chipwise_blocks.py`` in the same folder. ``config.arch`` describes the stem and the layers: tables of items
and tags; pre-norm layers of softmax or pointwise attention, in which every position attends to itself and to the
history before it; a score for each candidate. Axes: B batch, T positions (S of the history, C candidates), J an item
and its tags, N heads, H head size, D width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.utils import ModelOutput

from chipwise.model.kinds.chipwise_blocks import (
    ArchModel,
    ChipwiseConfig,
    FeedForwardBlock,
    Projections,
    make_layers,
    make_norm,
)

__all__ = ["ChipwiseConfig", "ChipwiseRanker"]


@dataclass
class RankingOutput(ModelOutput):
    """Scores of the candidates, (B, C); higher is better."""

    scores: Tensor | None = None


class Items(nn.Module):
    """Embeds items and their tags."""

    def __init__(self, stem: dict[str, Any], d_model: int) -> None:
        super().__init__()
        width = stem["width"] or d_model
        self.items = nn.Embedding(stem["items"] + 1, width)
        self.tags = nn.Embedding(stem["tags"] + 1, width) if stem["bag"] else None
        values = width * (2 if stem["bag"] else 1)
        self.projection = nn.Linear(values, d_model, bias=stem["bias"]) if stem["width"] else None

    def forward(self, ids_BTJ: Tensor) -> Tensor:
        """The first layer's input (B, T, D)."""
        x_BTD = self.items(ids_BTJ[..., 0])
        tags = None if self.tags is None else self.tags(ids_BTJ[..., 1:]).sum(2)
        if self.projection is None:
            return x_BTD if tags is None else x_BTD + tags
        return self.projection(x_BTD if tags is None else torch.cat((x_BTD, tags), dim=-1))


class HistoryAttentionBlock(Projections):
    """Attention of every position to itself and to the history before it, with relative position biases."""

    def __init__(self, block: dict[str, Any], arch: dict[str, Any], number: int) -> None:
        super().__init__(block, arch, number)
        self.pointwise = block.get("pointwise", False)
        width = self.heads * self.head_size
        self.gate = nn.Linear(arch["d_model"], width, bias=block["qkv_bias"]) if self.pointwise else None
        self.norm = nn.RMSNorm(width, eps=arch["norm_eps"]) if self.pointwise else None

    def forward(self, x_BTD: Tensor, table_SN: Tensor) -> Tensor:
        """The block's output, without the residual. ``table_SN`` holds the bias of each distance from 0 to S."""
        seen, act = len(table_SN) - 1, F.silu if self.pointwise else nn.Identity()
        q, k, v = (self.by_heads(act(part(x_BTD))) for part in (self.q, self.k, self.v))
        q = q / math.sqrt(self.head_size)
        place_T = torch.arange(x_BTD.shape[1], device=x_BTD.device).clamp(max=seen)
        distance_TS = place_T[:, None] - torch.arange(seen, device=x_BTD.device)
        bias_NTS = table_SN[distance_TS.clamp(min=0)].permute(2, 0, 1)
        scores = q @ k[:, :, :seen].transpose(2, 3) + bias_NTS
        own = (q * k).sum(-1, keepdim=True) + table_SN[0][:, None, None]
        if self.gate is None or self.norm is None:
            shares = torch.softmax(torch.cat((scores.masked_fill(distance_TS < 1, -1e9), own), dim=-1), dim=-1)
        else:
            shares = torch.cat((F.silu(scores).masked_fill(distance_TS < 1, 0.0), F.silu(own)), dim=-1) / (seen + 1)
        y = shares[..., :seen] @ v[:, :, :seen] + shares[..., seen:] * v
        y = y.transpose(1, 2).flatten(2)
        if self.gate is not None and self.norm is not None:
            y = self.norm(y) * F.silu(self.gate(x_BTD))
        return self.out(y)


class ChipwiseRanker(ArchModel):
    """A ranking model, which scores candidates given a history."""

    main_input_name = "ids"
    _supports_sdpa = False

    def __init__(self, config: ChipwiseConfig) -> None:
        super().__init__(config)
        arch = self.arch
        self.history = arch["stem"]["history"]
        self.stem = Items(arch["stem"], arch["d_model"])
        self.positions = nn.ModuleDict(
            {
                str(i): nn.Embedding(self.history + 1, layer["attention"]["heads"])
                for i, layer in enumerate(arch["layers"])
                if layer["attention"] is not None
            }
        )
        self.layers = make_layers(arch, attention=HistoryAttentionBlock, ffn=FeedForwardBlock)
        self.norm = make_norm(arch)
        self.head = nn.Linear(arch["d_model"], 1) if arch["head"] == "scores" else None
        self.post_init()

    def forward(
        self, ids: Tensor, return_dict: bool | None = None, **kwargs: object
    ) -> RankingOutput | tuple[Tensor, ...]:
        """Scores of candidates ``ids[:, history:]`` after the history ``ids[:, :history]``, (B, T, 1 + bag)."""
        first = x_BTD = self.stem(ids)
        for name, layer in self.layers.items():
            x_BTD = layer(x_BTD, attention=self.positions[name].weight if name in self.positions else None)
        x_BCD = self.norm(x_BTD[:, self.history :])
        first_BCD = first[:, self.history :]
        scores = (x_BCD * first_BCD).sum(-1) if self.head is None else self.head(x_BCD)[..., 0]
        output = RankingOutput(scores=scores)
        return output.to_tuple() if return_dict is False else output
