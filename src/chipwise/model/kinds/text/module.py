"""A text decoder as a torch module, the reference for tests of every exported file.

Axes: B batch, T tokens, D model width, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.layer import Layer
from chipwise.model.blocks.attention.module import AttentionModule
from chipwise.model.blocks.conv.module import ShortConv
from chipwise.model.blocks.ffn.module import FeedForwardModule
from chipwise.model.blocks.norm.module import make_norm
from chipwise.model.kinds.text.form import DECODER
from chipwise.model.nn import rotary
from chipwise.model.nn.fresh import fill

Cache = tuple[Tensor, ...]  # per layer: keys and values (B, kv_heads, S, H), then the convolutions' last inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The state after previous passes: the number of tokens read, and each layer's cache."""

    tokens: int
    caches: list[Cache | None]


class LayerModule(nn.Module):
    """One residual layer, with norms before its blocks, after the residual sums, or before and after each block."""

    def __init__(self, arch: ArchSpec, layer: Layer) -> None:
        super().__init__()
        self.place = arch.norm_place
        self.attention_norm = self.attention = self.ffn_norm = self.ffn = None
        self.attention_post_norm = self.ffn_post_norm = None
        self.attention_conv = ShortConv(arch.d_model, layer.attention_conv) if layer.attention_conv else None
        self.ffn_conv = ShortConv(arch.d_model, layer.ffn_conv) if layer.ffn_conv else None
        if layer.attention is not None:
            self.attention_norm = make_norm(arch)
            self.attention = AttentionModule(layer.attention, arch.d_model, arch.norm_eps)
        if layer.ffn is not None:
            self.ffn_norm = make_norm(arch)
            self.ffn = FeedForwardModule(layer.ffn, arch.d_model)
        if self.place == "both":
            self.attention_post_norm = None if layer.attention is None else make_norm(arch)
            self.ffn_post_norm = None if layer.ffn is None else make_norm(arch)

    def read(self, name: str, x_BTD: Tensor) -> Tensor:
        """The input of the block ``name``: the residual stream, normed unless norms follow the residual sums."""
        normed: Tensor = x_BTD if self.place == "post" else getattr(self, f"{name}_norm")(x_BTD)
        return normed

    def added(self, name: str, x_BTD: Tensor, y_BTD: Tensor) -> Tensor:
        """The residual stream after adding ``y_BTD``, the output of the block ``name``."""
        if self.place == "post":
            total: Tensor = getattr(self, f"{name}_norm")(x_BTD + y_BTD)
            return total
        return x_BTD + (getattr(self, f"{name}_post_norm")(y_BTD) if self.place == "both" else y_BTD)

    def forward(
        self, x_BTD: Tensor, angles: tuple[Tensor, Tensor] | None, cache: Cache | None
    ) -> tuple[Tensor, Cache | None]:
        """The residual stream after the layer, and the layer's new cache."""
        past, kept = list(cache or ()), list[Tensor]()  # in order: keys, values, the convolutions' inputs
        keys = (past.pop(0), past.pop(0)) if past and self.attention is not None else None
        if self.attention is not None:
            h_BTD = self.read("attention", x_BTD)
            if self.attention_conv is not None:
                h_BTD, last = self.attention_conv(h_BTD, past.pop(0) if past else None)
                kept.append(last)
            y_BTD, keys = self.attention(h_BTD, angles, keys)
            x_BTD = self.added("attention", x_BTD, y_BTD)
        if self.ffn is not None:
            h_BTD = self.read("ffn", x_BTD)
            if self.ffn_conv is not None:
                h_BTD, last = self.ffn_conv(h_BTD, past.pop(0) if past else None)
                kept.append(last)
            x_BTD = self.added("ffn", x_BTD, self.ffn(h_BTD))
        return x_BTD, (*(keys or ()), *kept) or None


class Transformer(nn.Module):
    """A text decoder. Its parameters have no valid values until :func:`initialise` or loaded weights set them.

    Layers that share weights are one module. ``layers`` maps the number of each layer with its own weights to the
    layer's module. For each layer of the model, in order, ``order`` has the key of its module in ``layers``.
    """

    def __init__(self, arch: ArchSpec) -> None:
        DECODER.require(arch, work="built in torch")
        super().__init__()
        self.arch = arch
        self.embedding = nn.Embedding(arch.vocab_size, arch.d_model)
        learned = arch.positions == "learned"
        self.positions = nn.Embedding(arch.max_tokens, arch.d_model) if learned else None
        self.layers = nn.ModuleDict({str(i): LayerModule(arch, layer) for i, layer in arch.owned_layers()})
        self.order = [str(i if layer.shares is None else layer.shares) for i, layer in enumerate(arch.layers)]
        self.norm = make_norm(arch) if arch.final_norm else nn.Identity()
        self.head = None if arch.tie_embeddings else nn.Linear(arch.d_model, arch.vocab_size, bias=False)
        self._angles: dict[tuple[int, torch.device], tuple[Tensor, Tensor]] = {}

    def forward(self, tokens_BT: Tensor, past: Past | None = None) -> tuple[Tensor, Past]:
        """Logits (B, T, V) of every position, and the state for the next pass."""
        x_BTD, new = self.hidden(tokens_BT, past)
        return F.linear(x_BTD, self.head_table), new

    @property
    def head_table(self) -> Tensor:
        """The head's matrix (V, D): the token table if the head is tied."""
        return self.embedding.weight if self.head is None else self.head.weight

    def hidden(self, tokens_BT: Tensor, past: Past | None = None) -> tuple[Tensor, Past]:
        """The head's input (B, T, D), after the final norm, and the state for the next pass."""
        past = past or Past(tokens=0, caches=[None] * len(self.order))
        start, end = past.tokens, past.tokens + tokens_BT.shape[1]
        x_BTD = self.embedding(tokens_BT)
        if self.positions is not None:
            x_BTD = x_BTD + self.positions(torch.arange(start, end, device=tokens_BT.device))
        new: list[Cache | None] = []
        for owner, layer, cache in zip(self.order, self.arch.layers, past.caches, strict=True):
            angles = None
            if layer.attention is not None and layer.attention.rope:
                cos, sin = self._rotary(layer.attention.head_size, tokens_BT.device)
                angles = (cos[start:end], sin[start:end])
            x_BTD, cache = self.layers[owner](x_BTD, angles, cache)
            new.append(cache)
        return self.norm(x_BTD), Past(tokens=end, caches=new)

    def _rotary(self, head_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
        key = (head_size, device)
        if key not in self._angles:
            cos, sin = rotary.tables(head_size, self.arch.max_tokens, self.arch.rope_theta)
            self._angles[key] = (cos.to(device), sin.to(device))
        return self._angles[key]


def initialise(model: Transformer, *, seed: int) -> Transformer:
    """Initialises the parameters like :func:`fill`, except for tables, head and short convolutions.

    Tables and head have the standard deviation 1/√d_model; short convolutions start at 0.

    References:
        Residual scaling by 1/√(2·depth): Radford et al. 2019 (GPT-2), section 2.3.
    """
    wide = 1 / math.sqrt(model.arch.d_model)

    def deviation(name: str) -> float | None:
        if name.endswith("conv.weight"):
            return 0.0
        return wide if name.startswith(("embedding", "positions", "head")) else None

    return fill(model, seed=seed, deviation=deviation)


MODULE = Transformer
