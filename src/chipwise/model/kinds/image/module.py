"""An image classifier as a torch module, the reference for tests of its exported file.

Axes: B batch, C channels, Y and X rows and columns, T tokens, S image tokens for cross-attention, D model width.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.norm.module import make_norm
from chipwise.model.blocks.residual import ResidualLayer
from chipwise.model.kinds.image.distances.module import ImageAttention
from chipwise.model.kinds.image.form import CLASSIFIER
from chipwise.model.kinds.image.patches.module import Patches
from chipwise.model.kinds.question.projector.module import ProjectorModule
from chipwise.model.kinds.question.question import image_of, question_of
from chipwise.model.nn.fresh import fill


def make_tables(arch: ArchSpec) -> nn.ModuleDict:
    """The position-bias tables of the layers that have one, each (distances, heads)."""
    blocks = {str(i): layer.attention for i, layer in enumerate(arch.layers)}
    return nn.ModuleDict(
        {name: nn.Embedding(b.relative_buckets, b.heads) for name, b in blocks.items() if b and b.relative_buckets}
    )


class ImageClassifier(nn.Module):
    """An image classifier. Its parameters have no valid values until :func:`initialise` or loaded weights set them."""

    def __init__(self, arch: ArchSpec) -> None:
        CLASSIFIER.require(arch, work="built in torch")
        stem, asked = image_of(arch.stem), question_of(arch.stem)
        super().__init__()
        self.arch = arch
        self.stem = Patches(stem, arch.d_model)
        self.projector = None if asked is None else ProjectorModule(asked.projector, stem, arch.d_model)
        self.words = None if asked is None else nn.Embedding(asked.question.words, arch.d_model)
        learned = arch.positions == "learned"
        self.positions = nn.Embedding(arch.max_tokens, arch.d_model) if learned else make_tables(arch)
        self.image_norm = make_norm(arch) if arch.crosses else None
        attention = partial(ImageAttention, stem=stem)
        layers = {str(i): ResidualLayer(arch, layer, attention) for i, layer in enumerate(arch.layers)}
        self.layers = nn.ModuleDict(layers)
        self.norm = make_norm(arch)
        self.head = nn.Linear(arch.d_model, arch.outputs)

    def forward(self, image_BCYX: Tensor, words_BQ: Tensor | None = None) -> Tensor:
        """Logits (B, classes) of images or, with question words ``words_BQ``, of the answers to the questions."""
        x_BTD = self.stem(image_BCYX)
        if self.projector is not None:
            x_BTD = self.projector(x_BTD)
        if self.words is not None and words_BQ is not None:
            x_BTD = torch.cat((x_BTD, self.words(words_BQ).to(x_BTD.dtype)), dim=1)
        if isinstance(self.positions, nn.Embedding):
            x_BTD = x_BTD + self.positions.weight
        image_BSD = None
        if self.image_norm is not None:  # only the words pass through the layers
            image_BSD, x_BTD = x_BTD.split([self.arch.image_tokens, self.arch.request_tokens], dim=1)
            image_BSD = self.image_norm(image_BSD)
        tables = dict(self.positions.named_children())
        for name, layer in self.layers.items():
            table = tables[name].weight if name in tables else None
            x_BTD = layer(x_BTD, attention=(table,), cross=(image_BSD,))
        if self.arch.head.pooling in ("first", "last"):
            place = 0 if self.arch.head.pooling == "first" else -1
            return self.head(self.norm(x_BTD[:, place]))  # type: ignore[no-any-return]
        return self.head(self.norm(x_BTD).mean(1))  # type: ignore[no-any-return]


_SMALL = ("stem.prefix", "positions", "head", "words")
# Deviation 0.02 of positions and class token: Touvron et al. 2021 (DeiT), section 5.
initialise = partial(fill, deviation=lambda name: 0.02 if name.startswith(_SMALL) else None)
"""Fills parameters like :func:`chipwise.model.nn.fresh.fill`; class token, tables and head have deviation 0.02."""
MODULE = ImageClassifier
