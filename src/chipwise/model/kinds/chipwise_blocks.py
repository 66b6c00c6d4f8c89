"""Modules that the Hugging Face modelling files of all kinds share: norm, attention, feed-forward, layer, config.

This file needs only torch and transformers. Hugging Face folders hold a copy of it, which their modelling file imports.
Axes: B batch, T tokens, S attended tokens, N heads, H head size, D width, Y and X rows and columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}
Block = Callable[[dict[str, Any], dict[str, Any], int], nn.Module]  # (block spec, architecture, layer's number)


class ChipwiseConfig(PretrainedConfig):
    """A config. ``arch`` holds the architecture as plain data, from which transformers' usual fields are derived."""

    model_type = "chipwise"
    keys_to_ignore_at_inference = ("past_key_values",)

    def __init__(self, arch: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self.arch = arch
        if arch is not None:
            kwargs = _fields(arch) | kwargs
            blocks = [
                layer.get(name) for layer in arch["layers"] for name in ("attention", "attention_conv", "ffn_conv")
            ]
            # Number of slots in a cache that generate() creates: attentions and convolutions take one each.
            kwargs["num_hidden_layers"] = max(len(arch["layers"]), sum(bool(block) for block in blocks))
            kwargs["tie_word_embeddings"] = arch["tie_embeddings"]
        super().__init__(**kwargs)


def _fields(arch: dict[str, Any]) -> dict[str, Any]:
    """Fields of a config under the names that transformers uses."""
    stem, denoiser = arch.get("stem") or {}, arch.get("denoiser")
    fields = {name: stem[name] for name in ("image_size", "items", "history", "bag") if name in stem}
    if "patch" in stem:
        fields |= {"patch_size": stem["patch"], "num_channels": stem["channels"]}
    elif "channels" in stem:
        fields["num_mel_bins"] = stem["channels"]
    if denoiser is not None:
        fields |= {"num_inference_steps": denoiser["steps"], "guidance_scale": denoiser.get("guidance", 1.0)}
    attentions = [layer["attention"] for layer in arch["layers"] if layer["attention"]]
    return fields | {
        "vocab_size": arch["vocab_size"],
        "hidden_size": arch["d_model"],
        "num_attention_heads": max((block["heads"] for block in attentions), default=1),
        "max_position_embeddings": arch["max_tokens"],
    }


class ArchModel(PreTrainedModel):
    """Base class of models; each subclass builds its modules from ``arch``."""

    config_class = ChipwiseConfig
    _no_split_modules = ("ResidualLayer",)
    _supports_sdpa = True

    def __init__(self, config: ChipwiseConfig) -> None:
        super().__init__(config)
        if config.arch is None:
            raise ValueError("the config lacks the field `arch`, which describes the model to build")
        self.arch: dict[str, Any] = config.arch


class TextModel(ArchModel):
    """A model that reads tokens through its table ``embedding``."""

    embedding: nn.Embedding

    def get_input_embeddings(self) -> nn.Module:
        """The token table."""
        return self.embedding

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replaces the token table."""
        self.embedding = value


def make_norm(arch: dict[str, Any]) -> nn.Module:
    """The norm over the model's width."""
    if arch["norm"] == "rmsnorm":
        return nn.RMSNorm(arch["d_model"], eps=arch["norm_eps"])
    return nn.LayerNorm(arch["d_model"], eps=arch["norm_eps"], bias=arch["norm_bias"])


class Projections(nn.Module):
    """The matrices of an attention block, and the attention computation."""

    def __init__(self, block: dict[str, Any], arch: dict[str, Any], number: int) -> None:
        super().__init__()
        d_model, bias = arch["d_model"], block["qkv_bias"]
        self.heads, self.kv_heads, self.head_size = block["heads"], block["kv_heads"], block["head_size"]
        width, kv_width = self.heads * self.head_size, self.kv_heads * self.head_size
        self.q = nn.Linear(d_model, width, bias=bias)
        self.k = nn.Linear(d_model, kv_width, bias=bias)
        self.v = nn.Linear(d_model, kv_width, bias=bias)
        self.out = nn.Linear(width, d_model, bias=block["out_bias"])

    def by_heads(self, x_BTD: Tensor) -> Tensor:
        """Splits queries, keys or values into heads, (B, N, T, H)."""
        return x_BTD.view(*x_BTD.shape[:2], -1, self.head_size).transpose(1, 2)

    def attend(self, q_BNTH: Tensor, k_BNSH: Tensor, v_BNSH: Tensor, mask: Tensor | None = None) -> Tensor:
        """The block's output. ``mask`` is boolean, or holds values that are added to the scores."""
        grouped = self.heads != self.kv_heads
        y_BNTH = F.scaled_dot_product_attention(q_BNTH, k_BNSH, v_BNSH, attn_mask=mask, enable_gqa=grouped)
        return self.out(y_BNTH.transpose(1, 2).flatten(2))


class AttentionBlock(Projections):
    """Attention in which every position attends to all positions."""

    def forward(self, x_BTD: Tensor, mask: Tensor | None = None) -> Tensor:
        """The block's output, without the residual."""
        q, k, v = (self.by_heads(part(x_BTD)) for part in (self.q, self.k, self.v))
        return self.attend(q, k, v, mask)


def cut_patches(x_BCYX: Tensor, edge: int) -> Tensor:
    """Cuts images (B, C, Y, X) into patches, or signals (B, C, X) into slices, and flattens each."""
    if x_BCYX.ndim == 3:
        batch, channels, frames = x_BCYX.shape
        parts = x_BCYX.reshape(batch, channels, frames // edge, edge)
        return parts.transpose(1, 2).reshape(batch, -1, channels * edge)
    batch, channels, rows, columns = x_BCYX.shape
    parts = x_BCYX.reshape(batch, channels, rows // edge, edge, columns // edge, edge)
    return parts.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * edge * edge)


class GroupedLinear(nn.ModuleList):
    """A block-diagonal matrix: the channels form equal groups, each of which has its own matrix."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The outputs of all groups, concatenated in order."""
        parts = x_BTD.chunk(len(self), dim=-1)
        return torch.cat([one(part) for one, part in zip(self, parts, strict=True)], dim=-1)


def make_linear(width: int, outputs: int, block: dict[str, Any]) -> nn.Module:
    """The dense or grouped matrix that a feed-forward needs."""
    groups = block.get("groups", 1)
    parts = [nn.Linear(width // groups, outputs // groups, bias=block["bias"]) for _ in range(groups)]
    return parts[0] if groups == 1 else GroupedLinear(parts)


class FeedForwardBlock(nn.Module):
    """``down(act(up(x)))``, or ``down(act(gate(x)) * up(x))`` when gated."""

    def __init__(self, block: dict[str, Any], arch: dict[str, Any], number: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[block["activation"]]
        d_model, width = arch["d_model"], block["width"]
        self.gate = make_linear(d_model, width, block) if block["gated"] else None
        self.up = make_linear(d_model, width, block)
        self.down = make_linear(width, d_model, block)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The block's output, without the residual."""
        if self.gate is None:
            return self.down(self.activation(self.up(x_BTD)))
        return self.down(self.activation(self.gate(x_BTD)) * self.up(x_BTD))


class ResidualLayer(nn.Module):
    """Blocks with residual connections. The norm of each block comes before the block, or after the residual sum.

    ``kinds`` maps each block's name to its class, in execution order.
    """

    def __init__(self, layer: dict[str, Any], arch: dict[str, Any], number: int, kinds: dict[str, Block]) -> None:
        super().__init__()
        self.after = arch.get("norm_place") == "post"
        self.blocks = [name for name in kinds if layer.get(name) is not None]
        for name in self.blocks:
            setattr(self, name, kinds[name](layer[name], arch, number))
            setattr(self, f"{name}_norm", make_norm(arch))

    def forward(self, x_BTD: Tensor, **beside: Tensor | None) -> Tensor:
        """The residual stream after the layer. ``beside`` maps a block's name to its additional input."""
        for name in self.blocks:
            block, norm = getattr(self, name), getattr(self, f"{name}_norm")
            inputs = (beside[name],) if name in beside else ()
            x_BTD = norm(x_BTD + block(x_BTD, *inputs)) if self.after else x_BTD + block(norm(x_BTD), *inputs)
        return x_BTD


def make_layers(arch: dict[str, Any], **kinds: Block) -> nn.ModuleDict:
    """A dictionary from layer number to layer. ``kinds`` maps each block's name to its class, in execution order."""
    return nn.ModuleDict({str(i): ResidualLayer(layer, arch, i, kinds) for i, layer in enumerate(arch["layers"])})
