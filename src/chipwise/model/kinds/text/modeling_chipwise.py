"""A decoder whose layers may differ from each other, for ``AutoModelForCausalLM`` with ``trust_remote_code=True``.

It needs ``chipwise_blocks.py`` in the same folder. ``config.arch`` describes the layers: each has an attention block, a
feed-forward block, or both, each with a residual connection and its norms; a layer may share the weights of an
earlier one. Axes: B batch, T new tokens, S all tokens, N heads, H head size, D model width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from chipwise.model.kinds.chipwise_blocks import (
    ChipwiseConfig,
    FeedForwardBlock,
    Projections,
    TextModel,
    make_norm,
)

__all__ = ["ChipwiseConfig", "ChipwiseForCausalLM"]


@dataclass(frozen=True)
class Places:
    """Positions and masks of the new tokens.

    ``position`` is (B or 1, T), the attention mask ``visible`` (B or 1, 1, T, S). ``real`` (B, T) is 0 at padding.
    """

    position: Tensor
    visible: Tensor
    real: Tensor | None


def rotate(x_BNTH: Tensor, angle_BTH: Tensor) -> Tensor:
    """Applies rotary positions to ``x_BNTH``; ``angle_BTH`` has half a head's width."""
    cos, sin = angle_BTH.cos().float(), angle_BTH.sin().float()
    cos = torch.cat((cos, cos), dim=-1)[:, None].to(x_BNTH.dtype)
    sin = torch.cat((-sin, sin), dim=-1)[:, None].to(x_BNTH.dtype)
    return x_BNTH * cos + x_BNTH.roll(x_BNTH.shape[-1] // 2, dims=-1) * sin


class ShortConv(nn.Module):
    """``x + conv(x)``: a depthwise convolution over the last positions; the last tap is the position itself."""

    def __init__(self, width: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, 1, taps))

    def forward(self, x_BTD: Tensor, real_BT: Tensor | None, cache: DynamicCache | None, slot: int) -> Tensor:
        """The block's output. Inputs at padding (0 in ``real_BT``) are set to 0.

        ``cache`` stores the inputs in ``slot``, as the keys of one head.
        """
        x_BTD = x_BTD if real_BT is None else x_BTD * real_BT[..., None].to(x_BTD.dtype)
        seen, taps, tokens = x_BTD, self.weight.shape[-1], x_BTD.shape[1]
        if cache is not None:
            kept, _ = cache.update(x_BTD[:, None], x_BTD[:, None, :, :0], slot)
            seen = kept[:, 0]
        seen = F.pad(seen, (0, 0, taps - 1, 0))[:, -(tokens + taps - 1) :]
        weight_KD = self.weight[:, 0].T.to(x_BTD.dtype)
        return x_BTD + sum(weight_KD[tap] * seen[:, tap : tap + tokens] for tap in range(taps))


class DecoderAttentionBlock(Projections):
    """Grouped-query self-attention, with rotary positions or without positions."""

    def __init__(self, block: dict[str, Any], arch: dict[str, Any], number: int) -> None:
        super().__init__(block, arch, number)
        self.window, self.theta = block["window"], arch["rope_theta"] if block["rope"] else None
        self.q_norm = nn.RMSNorm(self.head_size, eps=arch["norm_eps"]) if block["qk_norm"] else None
        self.k_norm = nn.RMSNorm(self.head_size, eps=arch["norm_eps"]) if block["qk_norm"] else None

    def forward(self, x_BTD: Tensor, at: Places, cache: DynamicCache | None, slot: int) -> Tensor:
        """The block's output. New keys and values are added to ``cache`` in ``slot``."""
        position_BT, visible = at.position, at.visible
        q_BNTH, k_BNSH, v_BNSH = (self.by_heads(part(x_BTD)) for part in (self.q, self.k, self.v))
        if self.q_norm is not None and self.k_norm is not None:
            q_BNTH, k_BNSH = self.q_norm(q_BNTH), self.k_norm(k_BNSH)
        if self.theta is not None:
            step = torch.arange(0, self.head_size, 2, dtype=torch.float64, device=x_BTD.device)
            angle = position_BT.double()[..., None] * self.theta ** (-step / self.head_size)
            q_BNTH, k_BNSH = rotate(q_BNTH, angle), rotate(k_BNSH, angle)
        if cache is not None:
            k_BNSH, v_BNSH = cache.update(k_BNSH, v_BNSH, slot)
        if self.window is not None:
            tokens, total = visible.shape[-2:]
            query = torch.arange(total - tokens, total, device=x_BTD.device)[:, None]
            visible = visible & (torch.arange(total, device=x_BTD.device)[None] > query - self.window)
        return self.attend(q_BNTH, k_BNSH, v_BNSH, visible)


class DecoderLayer(nn.Module):
    """One residual layer, with norms before its blocks, after the residual sums, or before and after each block."""

    def __init__(self, layer: dict[str, Any], arch: dict[str, Any], number: int) -> None:
        super().__init__()
        self.attention = self.ffn = None
        self.place = arch.get("norm_place", "pre")
        self.attention_conv, self.ffn_conv = (
            ShortConv(arch["d_model"], layer[name]) if layer.get(name) else None
            for name in ("attention_conv", "ffn_conv")
        )
        if layer["attention"] is not None:
            self.attention = DecoderAttentionBlock(layer["attention"], arch, number)
        if layer["ffn"] is not None:
            self.ffn = FeedForwardBlock(layer["ffn"], arch, number)
        for name in ("attention", "ffn"):
            for place in ("norm", "post_norm") if self.place == "both" else ("norm",):
                if layer[name] is not None:
                    setattr(self, f"{name}_{place}", make_norm(arch))

    def read(self, name: str, x_BTD: Tensor) -> Tensor:
        """The input of the block ``name``: the residual stream, normed unless norms follow the residual sums."""
        return x_BTD if self.place == "post" else getattr(self, f"{name}_norm")(x_BTD)

    def added(self, name: str, x_BTD: Tensor, y_BTD: Tensor) -> Tensor:
        """The residual stream after adding ``y_BTD``, the output of the block ``name``."""
        if self.place == "post":
            return getattr(self, f"{name}_norm")(x_BTD + y_BTD)
        return x_BTD + (getattr(self, f"{name}_post_norm")(y_BTD) if self.place == "both" else y_BTD)

    def forward(self, x_BTD: Tensor, at: Places, cache: DynamicCache | None, slots: Iterator[int]) -> Tensor:
        """The residual stream after the layer. ``slots`` yields the numbers of unused slots in ``cache``."""
        if self.attention is not None:
            slot, h_BTD = next(slots), self.read("attention", x_BTD)
            if self.attention_conv is not None:
                h_BTD = self.attention_conv(h_BTD, at.real, cache, next(slots))
            x_BTD = self.added("attention", x_BTD, self.attention(h_BTD, at, cache, slot))
        if self.ffn is not None:
            h_BTD = self.read("ffn", x_BTD)
            if self.ffn_conv is not None:
                h_BTD = self.ffn_conv(h_BTD, at.real, cache, next(slots))
            x_BTD = self.added("ffn", x_BTD, self.ffn(h_BTD))
        return x_BTD


class ChipwiseForCausalLM(TextModel, GenerationMixin):
    """The decoder with its LM head. A tied head is the token table."""

    _no_split_modules = ("DecoderLayer",)

    def __init__(self, config: ChipwiseConfig) -> None:
        super().__init__(config)
        arch = self.arch
        owners = {i: layer for i, layer in enumerate(arch["layers"]) if layer["shares"] is None}
        self.embedding = nn.Embedding(arch["vocab_size"], arch["d_model"])
        learned = arch["positions"] == "learned"
        self.positions = nn.Embedding(arch["max_tokens"], arch["d_model"]) if learned else None
        self.layers = nn.ModuleDict({str(i): DecoderLayer(layer, arch, i) for i, layer in owners.items()})
        self.order = [str(i if layer["shares"] is None else layer["shares"]) for i, layer in enumerate(arch["layers"])]
        self.remembers = any(
            layer["attention"] is not None or layer.get("attention_conv") or layer.get("ffn_conv")
            for layer in arch["layers"]
        )
        self.norm = make_norm(arch) if arch.get("final_norm", True) else nn.Identity()
        self.head = None if arch["tie_embeddings"] else nn.Linear(arch["d_model"], arch["vocab_size"], bias=False)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module | None:
        """The LM head; None if it is tied to the token table."""
        return self.head

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: DynamicCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        return_dict: bool | None = None,
        **kwargs: object,
    ) -> CausalLMOutputWithPast | tuple[Tensor, ...]:
        """Logits of the last ``logits_to_keep`` positions (0 means all positions), and the cache with the new tokens.

        ``attention_mask`` is (B, S) with zeros on padding.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        x_BTD = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache is not False and past_key_values is None and not self.training:
            past_key_values = DynamicCache()
        past = past_key_values.get_seq_length() if past_key_values is not None else 0
        tokens, total = x_BTD.shape[1], past + x_BTD.shape[1]
        if position_ids is None:
            position_ids = torch.arange(past, total, device=x_BTD.device)[None]
        visible = _causal(tokens, total, attention_mask, x_BTD.device)
        if self.positions is not None:
            x_BTD = x_BTD + self.positions(position_ids)
        real_BT = None if attention_mask is None else attention_mask[:, past:total]
        at = Places(position=position_ids, visible=visible, real=real_BT)
        slots = count()  # cache slots in order of use: one per attention and convolution, also when weights are shared
        if past_key_values is not None and not self.remembers:
            one_B1T1 = x_BTD[:, None, :, :1]  # only its cached length is used: it counts positions
            past_key_values.update(one_B1T1, one_B1T1, 0)
        for owner in self.order:
            x_BTD = self.layers[owner](x_BTD, at, past_key_values, slots)
        x_BTD = self.norm(x_BTD)[:, -logits_to_keep:]
        logits = F.linear(x_BTD, self.embedding.weight if self.head is None else self.head.weight)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=logits.shape[-1], **kwargs)
        output = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)
        return output.to_tuple() if return_dict is False else output


def _causal(tokens: int, total: int, attention_mask: Tensor | None, device: torch.device) -> Tensor:
    """Causal mask of the new tokens, (B or 1, 1, T, S); a token always sees itself, so padding gives no NaN."""
    query = torch.arange(total - tokens, total, device=device)[:, None]
    key = torch.arange(total, device=device)[None]
    visible = (key <= query)[None, None]
    if attention_mask is None:
        return visible
    return (visible & attention_mask[:, None, None, :total].bool()) | (key == query)
