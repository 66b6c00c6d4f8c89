"""A BERT-style encoder as a torch module, the reference for tests of its exported file.

Axes: B batch, T tokens, D model width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Pooler
from chipwise.model.blocks.norm.module import make_norm
from chipwise.model.blocks.residual import ResidualLayer
from chipwise.model.kinds.encoder.form import ENCODER


class Encoder(nn.Module):
    """A text encoder. Its parameters have torch's default initialisation until weights are loaded."""

    def __init__(self, arch: ArchSpec) -> None:
        ENCODER.require(arch, work="built in torch")
        super().__init__()
        self.arch = arch
        self.embedding = nn.Embedding(arch.vocab_size, arch.d_model)
        self.positions = nn.Embedding(arch.max_tokens, arch.d_model)
        segments = arch.stem.token_types
        self.token_types = nn.Embedding(segments, arch.d_model) if segments else None
        self.embedding_norm = make_norm(arch) if arch.embedding_norm else None
        self.layers = nn.ModuleDict({str(i): ResidualLayer(arch, layer) for i, layer in enumerate(arch.layers)})
        self.pooler = nn.Linear(arch.d_model, arch.d_model) if isinstance(arch.head, Pooler) else None

    def forward(self, tokens_BT: Tensor, mask_BT: Tensor | None = None, types_BT: Tensor | None = None) -> Tensor:
        """The last layer's states (B, T, D).

        ``mask_BT`` is true (or 1) at text, false at padding; by default nothing is padding. ``types_BT`` are the
        segment numbers, 0 by default.
        """
        x_BTD = self.embed(tokens_BT, types_BT)
        hidden_B11T = hidden_of(mask_BT)
        for layer in self.layers.values():
            x_BTD = layer(x_BTD, attention=(hidden_B11T,))
        return x_BTD

    def embed(self, tokens_BT: Tensor, types_BT: Tensor | None = None) -> Tensor:
        """The first layer's input (B, T, D)."""
        x_BTD = self.embedding(tokens_BT) + self.positions.weight[: tokens_BT.shape[1]]
        if self.token_types is not None:
            x_BTD = x_BTD + (self.token_types.weight[0] if types_BT is None else self.token_types(types_BT))
        return x_BTD if self.embedding_norm is None else self.embedding_norm(x_BTD)  # type: ignore[no-any-return]

    def pooled(self, x_BTD: Tensor) -> Tensor:
        """The pooler's output (B, D): the first position's state through a square matrix and tanh.

        Raises:
            Unsupported: The model has no pooler.
        """
        if self.pooler is None:
            raise Unsupported(f"{self.arch.name} has no pooler")
        return torch.tanh(self.pooler(x_BTD[:, 0]))


def hidden_of(mask_BT: Tensor | None) -> Tensor | None:
    """The mask that is added to attention scores: 0 at text, minus infinity at padding."""
    if mask_BT is None:
        return None
    return torch.zeros(mask_BT.shape, device=mask_BT.device).masked_fill(mask_BT == 0, float("-inf"))[:, None, None]


def mean_pooled(x_BTD: Tensor, mask_BT: Tensor | None) -> Tensor:
    """The mean (B, D) of the states at the text's positions, without padding."""
    if mask_BT is None:
        return x_BTD.mean(1)
    weight = mask_BT.to(x_BTD.dtype)[..., None]
    return (x_BTD * weight).sum(1) / weight.sum(1)


MODULE = Encoder
