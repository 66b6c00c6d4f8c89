"""A CTC speech recogniser as a torch module, the reference for tests of its exported file.

Axes: B batch, M bands, T positions, D model width, V characters (the first is CTC's blank).
"""

from __future__ import annotations

from torch import Tensor, nn

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.layer import Layer
from chipwise.model.blocks.attention.encoder import EncoderAttention
from chipwise.model.blocks.conv_module.module import ConvModuleBlock
from chipwise.model.blocks.ffn.module import FeedForwardModule
from chipwise.model.blocks.norm.module import make_norm
from chipwise.model.kinds.sound.form import TRANSCRIBER
from chipwise.model.kinds.sound.frames.module import Frames
from chipwise.model.kinds.sound.stem import SoundStem
from chipwise.model.nn.fresh import fill


class SoundLayer(nn.Module):
    """One pre-norm residual layer with attention over the whole sound or within chunks."""

    def __init__(self, arch: ArchSpec, layer: Layer) -> None:
        super().__init__()
        self.attention_norm = self.attention = self.conv_norm = self.conv = self.ffn_norm = self.ffn = None
        self.chunk = None
        if layer.attention is not None:
            self.attention_norm = make_norm(arch)
            self.attention = EncoderAttention(layer.attention, arch.d_model)
            self.chunk = layer.attention.chunk
        if layer.conv is not None:
            self.conv_norm = make_norm(arch)
            self.conv = ConvModuleBlock(layer.conv, arch.d_model)
        if layer.ffn is not None:
            self.ffn_norm = make_norm(arch)
            self.ffn = FeedForwardModule(layer.ffn, arch.d_model)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The residual stream after the layer."""
        if self.attention is not None and self.attention_norm is not None:
            h_BTD = self.attention_norm(x_BTD)
            if self.chunk is not None:
                h_BTD = h_BTD.reshape(-1, self.chunk, h_BTD.shape[2])
            x_BTD = x_BTD + self.attention(h_BTD, None).reshape(x_BTD.shape)
        if self.conv is not None and self.conv_norm is not None:
            x_BTD = x_BTD + self.conv(self.conv_norm(x_BTD))
        if self.ffn is not None and self.ffn_norm is not None:
            x_BTD = x_BTD + self.ffn(self.ffn_norm(x_BTD))
        return x_BTD


class Transcriber(nn.Module):
    """A speech recogniser. Call :func:`initialise` after construction: the parameters are not initialised before."""

    def __init__(self, arch: ArchSpec) -> None:
        TRANSCRIBER.require(arch, work="built in torch")
        stem = arch.stem_as(SoundStem)
        super().__init__()
        self.arch = arch
        self.stem = Frames(stem, arch.d_model)
        self.positions = nn.Embedding(arch.max_tokens, arch.d_model)
        self.layers = nn.ModuleDict({str(i): SoundLayer(arch, layer) for i, layer in enumerate(arch.layers)})
        self.norm = make_norm(arch)
        self.head = nn.Linear(arch.d_model, arch.outputs)

    def forward(self, sound_BMT: Tensor) -> Tensor:
        """Logits (B, T, V) of spectrograms."""
        x_BTD = self.stem(sound_BMT) + self.positions.weight
        for layer in self.layers.values():
            x_BTD = layer(x_BTD)
        return self.head(self.norm(x_BTD))  # type: ignore[no-any-return]


def initialise(model: Transcriber, *, seed: int) -> Transcriber:
    """Fills the parameters: normal with 1/√fan-in, residual outputs scaled down by depth, positions and head small."""
    return fill(
        model,
        seed=seed,
        depth=len(model.arch.layers),
        deviation=lambda name: 0.02 if name.startswith(("positions", "head")) else None,
    )


MODULE = Transcriber
