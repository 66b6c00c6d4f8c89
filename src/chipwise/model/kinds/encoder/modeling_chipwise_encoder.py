"""A text encoder whose layers may all differ, for ``AutoModel`` with ``trust_remote_code=True``.

Self-contained: it needs torch and transformers. ``config.arch`` says what the layers are: each has an attention block,
a feed-forward block, both or none, with a norm after each sum. Axes: B batch, T tokens, N heads, H head size, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

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
            attentions = [layer["attention"] for layer in arch["layers"] if layer["attention"]]
            self.vocab_size = arch["vocab_size"]
            self.hidden_size = arch["d_model"]
            self.num_hidden_layers = len(arch["layers"])
            self.num_attention_heads = max((block["heads"] for block in attentions), default=1)
            self.max_position_embeddings = arch["max_tokens"]
        super().__init__(**kwargs)


def make_norm(arch: dict[str, Any]) -> nn.Module:
    """The norm over the model's width."""
    if arch["norm"] == "rmsnorm":
        return nn.RMSNorm(arch["d_model"], eps=arch["norm_eps"])
    return nn.LayerNorm(arch["d_model"], eps=arch["norm_eps"], bias=arch["norm_bias"])


class AttentionBlock(nn.Module):
    """Every position sees all that are no padding."""

    def __init__(self, block: dict[str, Any], d_model: int) -> None:
        super().__init__()
        self.heads, self.head_size = block["heads"], block["head_size"]
        width = self.heads * self.head_size
        self.q = nn.Linear(d_model, width, bias=block["qkv_bias"])
        self.k = nn.Linear(d_model, width, bias=block["qkv_bias"])
        self.v = nn.Linear(d_model, width, bias=block["qkv_bias"])
        self.out = nn.Linear(width, d_model, bias=block["out_bias"])

    def forward(self, x_BTD: Tensor, seen: Tensor | None) -> Tensor:
        """The block's output, without the residual; ``seen`` is (B, 1, 1, T)."""
        batch, tokens, _ = x_BTD.shape
        q, k, v = (
            part(x_BTD).view(batch, tokens, self.heads, self.head_size).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, -1))


class FeedForwardBlock(nn.Module):
    """``down(act(up(x)))``, or ``down(act(gate(x)) * up(x))`` when gated."""

    def __init__(self, block: dict[str, Any], d_model: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[block["activation"]]
        width, bias = block["width"], block["bias"]
        self.gate = nn.Linear(d_model, width, bias=bias) if block["gated"] else None
        self.up = nn.Linear(d_model, width, bias=bias)
        self.down = nn.Linear(width, d_model, bias=bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The block's output, without the residual."""
        if self.gate is None:
            return self.down(self.activation(self.up(x_BTD)))
        return self.down(self.activation(self.gate(x_BTD)) * self.up(x_BTD))


class EncoderLayer(nn.Module):
    """One residual layer with a norm after each sum."""

    def __init__(self, layer: dict[str, Any], arch: dict[str, Any]) -> None:
        super().__init__()
        self.attention_norm = self.attention = self.ffn_norm = self.ffn = None
        if layer["attention"] is not None:
            self.attention, self.attention_norm = AttentionBlock(layer["attention"], arch["d_model"]), make_norm(arch)
        if layer["ffn"] is not None:
            self.ffn, self.ffn_norm = FeedForwardBlock(layer["ffn"], arch["d_model"]), make_norm(arch)

    def forward(self, x_BTD: Tensor, seen: Tensor | None) -> Tensor:
        """The residual stream after the layer."""
        if self.attention is not None and self.attention_norm is not None:
            x_BTD = self.attention_norm(x_BTD + self.attention(x_BTD, seen))
        if self.ffn is not None and self.ffn_norm is not None:
            x_BTD = self.ffn_norm(x_BTD + self.ffn(x_BTD))
        return x_BTD


class ChipwiseEncoder(PreTrainedModel):
    """The encoder, with its pooler where it has one."""

    config_class = ChipwiseConfig
    _no_split_modules = ("EncoderLayer",)
    _supports_sdpa = True

    def __init__(self, config: ChipwiseConfig) -> None:
        super().__init__(config)
        arch = config.arch
        if arch is None:
            raise ValueError("the config holds no arch, so there is no model to build")
        width, types = arch["d_model"], arch.get("token_types", 0)
        self.embedding = nn.Embedding(arch["vocab_size"], width)
        self.positions = nn.Embedding(arch["max_tokens"], width)
        self.token_types = nn.Embedding(types, width) if types else None
        self.embedding_norm = make_norm(arch) if arch.get("embedding_norm") else None
        self.layers = nn.ModuleDict({str(i): EncoderLayer(layer, arch) for i, layer in enumerate(arch["layers"])})
        self.pooler = nn.Linear(width, width) if arch.get("head") == "pooler" else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The token table."""
        return self.embedding

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replaces the token table."""
        self.embedding = value

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPooling | tuple[Any, ...]:
        """The last layer's states. ``attention_mask`` is (B, T) with zeros on padding."""
        x_BTD = self.embedding(input_ids) + self.positions.weight[: input_ids.shape[1]]
        if self.token_types is not None:
            types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            x_BTD = x_BTD + self.token_types(types)
        if self.embedding_norm is not None:
            x_BTD = self.embedding_norm(x_BTD)
        seen = None if attention_mask is None else attention_mask[:, None, None].bool()
        for layer in self.layers.values():
            x_BTD = layer(x_BTD, seen)
        pooled = None if self.pooler is None else torch.tanh(self.pooler(x_BTD[:, 0]))
        output = BaseModelOutputWithPooling(last_hidden_state=x_BTD, pooler_output=pooled)
        return output.to_tuple() if return_dict is False else output
