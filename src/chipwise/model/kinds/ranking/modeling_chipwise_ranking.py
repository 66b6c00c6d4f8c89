"""A ranking model for ``AutoModel`` with ``trust_remote_code=True``.

Self-contained: it needs torch and transformers. ``config.arch`` says what the stem and the layers are: tables of items
and tags; pre-norm layers in which every position sees the history before it and itself, by softmax or pointwise
attention; a score for each candidate. Axes: B batch, T positions (S of the history, C candidates), J an item and its
tags, N heads, H head size, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


class ChipwiseConfig(PretrainedConfig):
    """``arch`` is the architecture as plain data; the usual fields are derived from it."""

    model_type = "chipwise"

    def __init__(self, arch: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self.arch = arch
        if arch is not None:
            self.hidden_size = arch["d_model"]
            self.num_hidden_layers = len(arch["layers"])
            self.items, self.history, self.bag = (arch["stem"][name] for name in ("items", "history", "bag"))
        super().__init__(**kwargs)


@dataclass
class RankingOutput(ModelOutput):
    """Scores of the candidates, (B, C); the greater, the better."""

    scores: Tensor | None = None


def make_norm(arch: dict[str, Any]) -> nn.Module:
    """The norm over the model's width."""
    if arch["norm"] == "rmsnorm":
        return nn.RMSNorm(arch["d_model"], eps=arch["norm_eps"])
    return nn.LayerNorm(arch["d_model"], eps=arch["norm_eps"], bias=arch["norm_bias"])


class Items(nn.Module):
    """From items and their tags to positions."""

    def __init__(self, stem: dict[str, Any], d_model: int) -> None:
        super().__init__()
        width = stem["width"] or d_model
        self.items = nn.Embedding(stem["items"] + 1, width)
        self.tags = nn.Embedding(stem["tags"] + 1, width) if stem["bag"] else None
        values = width * (2 if stem["bag"] else 1)
        self.projection = nn.Linear(values, d_model, bias=stem["bias"]) if stem["width"] else None

    def forward(self, ids_BTJ: Tensor) -> Tensor:
        """The inputs of the first layer, (B, T, D)."""
        x_BTD = self.items(ids_BTJ[..., 0])
        tags = None if self.tags is None else self.tags(ids_BTJ[..., 1:]).sum(2)
        if self.projection is None:
            return x_BTD if tags is None else x_BTD + tags
        return self.projection(x_BTD if tags is None else torch.cat((x_BTD, tags), dim=-1))


class AttentionBlock(nn.Module):
    """Every position sees the history before it and itself, with a bias by distance."""

    def __init__(self, block: dict[str, Any], d_model: int, eps: float) -> None:
        super().__init__()
        self.heads, self.size = block["heads"], block["head_size"]
        self.pointwise = block.get("pointwise", False)
        width, bias = self.heads * self.size, block["qkv_bias"]
        self.q = nn.Linear(d_model, width, bias=bias)
        self.k = nn.Linear(d_model, width, bias=bias)
        self.v = nn.Linear(d_model, width, bias=bias)
        self.gate = nn.Linear(d_model, width, bias=bias) if self.pointwise else None
        self.norm = nn.RMSNorm(width, eps=eps) if self.pointwise else None
        self.out = nn.Linear(width, d_model, bias=block["out_bias"])

    def forward(self, x_BTD: Tensor, table_SN: Tensor) -> Tensor:
        """The block's output, without the residual; ``table_SN`` holds the bias of each distance from 0 to S."""
        batch, tokens, _ = x_BTD.shape
        seen = len(table_SN) - 1

        def heads(part: nn.Module) -> Tensor:
            y = part(x_BTD)
            y = F.silu(y) if self.pointwise else y
            return y.view(batch, tokens, self.heads, self.size).transpose(1, 2)

        place_T = torch.arange(tokens, device=x_BTD.device).clamp(max=seen)
        distance_TS = place_T[:, None] - torch.arange(seen, device=x_BTD.device)
        bias_NTS = table_SN[distance_TS.clamp(min=0)].permute(2, 0, 1)
        q, k, v = heads(self.q) / math.sqrt(self.size), heads(self.k), heads(self.v)
        scores = q @ k[:, :, :seen].transpose(2, 3) + bias_NTS
        own = (q * k).sum(-1, keepdim=True) + table_SN[0][:, None, None]
        if self.gate is None or self.norm is None:
            shares = torch.softmax(torch.cat((scores.masked_fill(distance_TS < 1, -1e9), own), dim=-1), dim=-1)
        else:
            shares = torch.cat((F.silu(scores).masked_fill(distance_TS < 1, 0.0), F.silu(own)), dim=-1) / (seen + 1)
        y = shares[..., :seen] @ v[:, :, :seen] + shares[..., seen:] * v
        y = y.transpose(1, 2).reshape(batch, tokens, self.heads * self.size)
        if self.gate is not None and self.norm is not None:
            y = self.norm(y) * F.silu(self.gate(x_BTD))
        return self.out(y)


class FeedForwardBlock(nn.Module):
    """``down(act(up(x)))``, or ``down(act(gate(x)) * up(x))`` when gated."""

    def __init__(self, block: dict[str, Any], d_model: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[block["activation"]]
        width, bias = block["width"], block.get("bias", False)
        self.gate = nn.Linear(d_model, width, bias=bias) if block["gated"] else None
        self.up = nn.Linear(d_model, width, bias=bias)
        self.down = nn.Linear(width, d_model, bias=bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The block's output, without the residual."""
        if self.gate is None:
            return self.down(self.activation(self.up(x_BTD)))
        return self.down(self.activation(self.gate(x_BTD)) * self.up(x_BTD))


class RankingLayer(nn.Module):
    """One pre-norm residual layer."""

    def __init__(self, layer: dict[str, Any], arch: dict[str, Any]) -> None:
        super().__init__()
        self.attention_norm = self.attention = self.ffn_norm = self.ffn = None
        if layer["attention"] is not None:
            self.attention = AttentionBlock(layer["attention"], arch["d_model"], arch["norm_eps"])
            self.attention_norm = make_norm(arch)
        if layer["ffn"] is not None:
            self.ffn, self.ffn_norm = FeedForwardBlock(layer["ffn"], arch["d_model"]), make_norm(arch)

    def forward(self, x_BTD: Tensor, table_SN: Tensor | None) -> Tensor:
        """The residual stream after the layer."""
        if self.attention is not None and self.attention_norm is not None and table_SN is not None:
            x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), table_SN)
        if self.ffn is not None and self.ffn_norm is not None:
            x_BTD = x_BTD + self.ffn(self.ffn_norm(x_BTD))
        return x_BTD


class ChipwiseRanker(PreTrainedModel):
    """The ranking model."""

    config_class = ChipwiseConfig
    main_input_name = "ids"
    _no_split_modules = ("RankingLayer",)

    def __init__(self, config: ChipwiseConfig) -> None:
        super().__init__(config)
        arch = config.arch
        if arch is None:
            raise ValueError("the config holds no arch, so there is no model to build")
        self.history = arch["stem"]["history"]
        self.stem = Items(arch["stem"], arch["d_model"])
        self.positions = nn.ModuleDict(
            {
                str(i): nn.Embedding(self.history + 1, layer["attention"]["heads"])
                for i, layer in enumerate(arch["layers"])
                if layer["attention"] is not None
            }
        )
        self.layers = nn.ModuleDict({str(i): RankingLayer(layer, arch) for i, layer in enumerate(arch["layers"])})
        self.norm = make_norm(arch)
        self.head = nn.Linear(arch["d_model"], 1) if arch["head"] == "scores" else None
        self.post_init()

    def forward(self, ids: Tensor, return_dict: bool | None = None, **kwargs: Any) -> RankingOutput | tuple[Any, ...]:
        """Scores of candidates ``ids[:, history:]`` after the history ``ids[:, :history]``, (B, T, 1 + bag)."""
        first = x_BTD = self.stem(ids)
        for name, layer in self.layers.items():
            x_BTD = layer(x_BTD, self.positions[name].weight if name in self.positions else None)
        x_BCD = self.norm(x_BTD[:, self.history :])
        first_BCD = first[:, self.history :]
        scores = (x_BCD * first_BCD).sum(-1) if self.head is None else self.head(x_BCD)[..., 0]
        output = RankingOutput(scores=scores)
        return output.to_tuple() if return_dict is False else output
