"""A ranking model as a torch module, the reference for tests of its exported file.

Axes: B batch, T positions (S of the history, C candidates), J an item and its tags, D model width.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.norm.module import make_norm
from chipwise.model.blocks.residual import ResidualLayer
from chipwise.model.kinds.ranking.candidates.module import Items, RequestAttention
from chipwise.model.kinds.ranking.form import RANKER
from chipwise.model.kinds.ranking.stem import RankingStem, Scores
from chipwise.model.nn.fresh import fill


class Ranker(nn.Module):
    """A ranking model. Its parameters have no valid values until :func:`initialise` or loaded weights set them."""

    def __init__(self, arch: ArchSpec) -> None:
        RANKER.require(arch, work="built in torch")
        stem = arch.stem_as(RankingStem)
        super().__init__()
        self.arch, self.history = arch, stem.history
        self.stem = Items(stem, arch.d_model)
        self.positions = nn.ModuleDict(
            {
                str(i): nn.Embedding(stem.history + 1, layer.attention.heads)
                for i, layer in enumerate(arch.layers)
                if layer.attention is not None
            }
        )
        attention = partial(RequestAttention, eps=arch.norm_eps)
        layers = {str(i): ResidualLayer(arch, layer, attention) for i, layer in enumerate(arch.layers)}
        self.layers = nn.ModuleDict(layers)
        self.norm = make_norm(arch)
        self.head = nn.Linear(arch.d_model, 1) if isinstance(arch.head, Scores) else None

    def forward(self, ids_BTJ: Tensor, places_C: Tensor | None = None) -> Tensor:
        """Scores (B, C) of candidates; each is independent of the other candidates.

        Args:
            ids_BTJ: The history's items, then the candidates, each with its tags.
            places_C: How many items of the history each candidate attends to; all by default.
        """
        history, count = self.history, ids_BTJ.shape[1] - self.history
        before = torch.arange(history, device=ids_BTJ.device)
        if places_C is None:
            places_C = before.new_full((count,), history)
        places_T = torch.cat((before, places_C))
        distance_TS = places_T[:, None] - before
        hidden_TS = distance_TS < 1
        nearest_TS = distance_TS.clamp(min=0)
        first = x_BTD = self.stem(ids_BTJ)
        for name, layer in self.layers.items():
            beside = {}
            if name in self.positions:
                table = self.positions[name]
                biases = table(nearest_TS).permute(2, 0, 1), table(nearest_TS[0, 0])  # position 0 sees only itself
                beside["attention"] = (biases[0], hidden_TS, biases[1])
            x_BTD = layer(x_BTD, **beside)
        x_BCD = self.norm(x_BTD[:, history:])
        if self.head is not None:
            return self.head(x_BCD)[..., 0]  # type: ignore[no-any-return]
        return (x_BCD * first[:, history:]).sum(-1)  # type: ignore[no-any-return]


initialise = partial(fill, deviation=lambda name: 0.0 if name.startswith("positions") else None)
"""Fills the parameters like :func:`chipwise.model.nn.fresh.fill`; position biases start at 0."""
MODULE = Ranker
