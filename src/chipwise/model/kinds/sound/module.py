"""A CTC speech recogniser as a torch module, the reference for tests of its exported file.

Axes: B batch, M bands, T positions, D model width, V characters (the first is CTC's blank).
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.norm.module import make_norm
from chipwise.model.blocks.residual import ResidualLayer
from chipwise.model.kinds.sound.form import TRANSCRIBER
from chipwise.model.kinds.sound.frames.module import Frames
from chipwise.model.kinds.sound.stem import SoundStem
from chipwise.model.nn.fresh import fill


class Transcriber(nn.Module):
    """A speech recogniser. Its parameters have no valid values until :func:`initialise` or loaded weights set them."""

    def __init__(self, arch: ArchSpec) -> None:
        TRANSCRIBER.require(arch, work="built in torch")
        stem = arch.stem_as(SoundStem)
        super().__init__()
        self.arch = arch
        self.stem = Frames(stem, arch.d_model)
        self.positions = nn.Embedding(arch.max_tokens, arch.d_model)
        self.layers = nn.ModuleDict({str(i): ResidualLayer(arch, layer) for i, layer in enumerate(arch.layers)})
        self.norm = make_norm(arch)
        self.head = nn.Linear(arch.d_model, arch.outputs)

    def forward(self, sound_BMT: Tensor) -> Tensor:
        """Logits (B, T, V) of spectrograms."""
        x_BTD = self.stem(sound_BMT) + self.positions.weight
        for layer in self.layers.values():
            x_BTD = layer(x_BTD)
        return self.head(self.norm(x_BTD))  # type: ignore[no-any-return]


initialise = partial(fill, deviation=lambda name: 0.02 if name.startswith(("positions", "head")) else None)
"""Fills the parameters like :func:`chipwise.model.nn.fresh.fill`; positions and head have deviation 0.02."""
MODULE = Transcriber
