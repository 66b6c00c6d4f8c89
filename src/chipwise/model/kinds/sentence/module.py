"""A text classifier as a torch module, the reference for tests of its exported file.

Axes: B batch, T words, D model width, C classes.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.norm.module import make_norm
from chipwise.model.blocks.residual import ResidualLayer
from chipwise.model.kinds.sentence.form import SENTENCES
from chipwise.model.kinds.sentence.stem import SentenceStem
from chipwise.model.nn.fresh import fill


class Words(nn.Module):
    """The word table, followed by a matrix if its rows are narrower than the model."""

    def __init__(self, stem: SentenceStem, d_model: int) -> None:
        super().__init__()
        self.words = nn.Embedding(stem.words, stem.table_width(d_model))
        self.projection = nn.Linear(stem.width, d_model, bias=False) if stem.width else None

    def forward(self, ids_BT: Tensor) -> Tensor:
        """The word embeddings (B, T, D), before positions are added."""
        x_BTW: Tensor = self.words(ids_BT)
        return x_BTW if self.projection is None else self.projection(x_BTW)


class SentenceClassifier(nn.Module):
    """A text classifier. Its parameters have no valid values until :func:`initialise` or loaded weights set them."""

    def __init__(self, arch: ArchSpec) -> None:
        SENTENCES.require(arch, work="built in torch")
        super().__init__()
        self.arch = arch
        self.stem = Words(arch.stem_as(SentenceStem), arch.d_model)
        self.positions = nn.Embedding(arch.max_tokens, arch.d_model)
        self.layers = nn.ModuleDict({str(i): ResidualLayer(arch, layer) for i, layer in enumerate(arch.layers)})
        self.norm = make_norm(arch)
        self.head = nn.Linear(arch.d_model, arch.outputs)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Logits (B, C) of texts given as word numbers."""
        x_BTD = self.stem(ids_BT) + self.positions.weight
        for layer in self.layers.values():
            x_BTD = layer(x_BTD)
        pooled_BD: Tensor = torch.mean(self.norm(x_BTD), dim=1)
        return self.head(pooled_BD)  # type: ignore[no-any-return]


_SMALL = ("stem.words", "positions", "head")
initialise = partial(fill, deviation=lambda name: 0.02 if name.startswith(_SMALL) else None)
"""Fills the parameters like :func:`chipwise.model.nn.fresh.fill`; tables and head have deviation 0.02."""
MODULE = SentenceClassifier
