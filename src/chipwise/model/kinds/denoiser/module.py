"""A denoiser as a torch module, the reference for tests of its exported file.

Axes: B batch, C channels, Y and X rows and columns, T tokens, D model width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.layer import Layer
from chipwise.model.blocks.attention.encoder import EncoderAttention
from chipwise.model.blocks.ffn.module import FeedForwardModule
from chipwise.model.kinds.denoiser.denoiser import Denoiser
from chipwise.model.kinds.denoiser.form import DENOISER
from chipwise.model.kinds.denoiser.latents.module import Decoder
from chipwise.model.kinds.denoiser.modulation.module import TimestepEmbedding, modulated
from chipwise.model.kinds.denoiser.parts import modulation_widths, parts_of
from chipwise.model.kinds.image.patches.module import Patches
from chipwise.model.kinds.image.stem import ImageStem


class DenoisingLayer(nn.Module):
    """One pre-norm residual layer whose blocks are shifted, scaled and gated."""

    def __init__(self, arch: ArchSpec, layer: Layer) -> None:
        super().__init__()
        self.attention = self.ffn = None
        self.norm = nn.LayerNorm(arch.d_model, eps=arch.norm_eps, elementwise_affine=False)
        if layer.attention is not None:
            self.attention = EncoderAttention(layer.attention, arch.d_model)
        if layer.ffn is not None:
            self.ffn = FeedForwardModule(layer.ffn, arch.d_model)

    def forward(self, x_BTD: Tensor, parts: list[Tensor]) -> Tensor:
        """The residual stream after the layer. ``parts`` holds shift, scale and gate of each block, each (B, D)."""
        if self.attention is not None:
            shift, scale, gate = parts[:3]
            x_BTD = x_BTD + gate[:, None] * self.attention(modulated(self.norm(x_BTD), shift, scale))
        if self.ffn is not None:
            shift, scale, gate = parts[-3:]
            x_BTD = x_BTD + gate[:, None] * self.ffn(modulated(self.norm(x_BTD), shift, scale))
        return x_BTD


class DenoisingTransformer(nn.Module):
    """A denoiser. Its parameters have no valid values until :func:`initialise` or loaded weights set them."""

    def __init__(self, arch: ArchSpec) -> None:
        DENOISER.require(arch, work="built in torch")
        stem, denoiser = parts_of(arch)
        super().__init__()
        self.arch = arch
        self.stem = Patches(stem, arch.d_model)
        self.positions = nn.Embedding(stem.tokens, arch.d_model)
        self.labels = nn.Embedding(denoiser.rows, arch.d_model)
        self.told = nn.ModuleDict({"time": TimestepEmbedding(denoiser.frequencies, arch.d_model)})
        self.layers = nn.ModuleDict({str(i): DenoisingLayer(arch, x) for i, x in enumerate(arch.layers)})
        widths = {name.removeprefix("modulations."): width for name, width in modulation_widths(arch).items()}
        self.modulations = nn.ModuleDict({name: nn.Linear(arch.d_model, width) for name, width in widths.items()})
        self.norm = nn.LayerNorm(arch.d_model, eps=arch.norm_eps, elementwise_affine=False)
        self.head = nn.Linear(arch.d_model, denoiser.values(stem))
        self.decoder = (
            None if denoiser.latents is None else Decoder(denoiser.latents, stem.channels).requires_grad_(False)
        )

    def forward(self, image_BCYX: Tensor, time_B: Tensor, label_B: Tensor) -> Tensor:
        """The predicted velocity (B, C, Y, X) of noisy images at their times, given their labels."""
        told_BD = torch.nn.functional.silu(self.labels(label_B) + self.told["time"](time_B))
        x_BTD = self.stem(image_BCYX) + self.positions.weight
        for name, layer in self.layers.items():
            parts = list(self.modulations[name](told_BD).split(self.arch.d_model, dim=-1))
            x_BTD = layer(x_BTD, parts)
        shift, scale = self.modulations["end"](told_BD).split(self.arch.d_model, dim=-1)
        return self._image(self.head(modulated(self.norm(x_BTD), shift, scale)))

    def _image(self, patches_BTV: Tensor) -> Tensor:
        stem = self.stem.stem
        parts = patches_BTV.view(-1, stem.grid, stem.grid, stem.channels, stem.patch, stem.patch)
        return parts.permute(0, 3, 1, 4, 2, 5).reshape(-1, *stem.shape)


@torch.no_grad()
def draw(model: DenoisingTransformer, noise_BCYX: Tensor, label_B: Tensor, served: Denoiser) -> Tensor:
    """Generates images (B, C, Y, X) from noise with ``model``. Steps, solver and guidance are those of ``served``.

    Guidance is classifier-free, so it needs a model that was trained both with and without labels. If the model
    generates latents, they are decoded at the end.
    """
    x, last = noise_BCYX, torch.zeros_like(noise_BCYX)
    for move in served.moves():
        time_B = torch.full((len(x),), move.time, device=x.device)
        velocity = model(x, time_B, label_B)
        if served.guided:
            no_label_B = torch.full_like(label_B, model.labels.num_embeddings - 1)
            without = model(x, time_B, no_label_B)
            velocity = without + served.guidance * (velocity - without)
        x = x + move.now * velocity + move.before * last
        last = velocity
    decoder = getattr(model, "decoder", None)
    return x if decoder is None else decoder(x)


def initialise(model: DenoisingTransformer, *, seed: int) -> DenoisingTransformer:
    """Initialises the parameters: normal values with standard deviation 1/√fan-in, except for the following.

    Biases, modulations and head are 0, so layers are the identity. Position embeddings are sinusoids along rows and
    columns. Label table and time embedding are normal with standard deviation 0.02.

    References:
        adaLN-zero, and these values: Peebles and Xie 2023, section 3.2 and their code.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or name.startswith(("modulations", "head")):
                parameter.zero_()
            elif name == "positions.weight":
                parameter.copy_(_waves(model.stem.stem, parameter.shape[1]))
            elif name.startswith(("labels", "told")):
                parameter.normal_(0.0, 0.02, generator=generator)
            else:
                parameter.normal_(0.0, 1 / math.sqrt(parameter[0].numel()), generator=generator)
    return model


def _waves(stem: ImageStem, width: int) -> Tensor:
    """Position embeddings (T, D) of sines and cosines. Half of the values encode the row, the others the column."""
    quarter = max(1, width // 4)
    turns = torch.exp(-math.log(10_000.0) * torch.arange(quarter) / quarter)
    y, x = torch.meshgrid(torch.arange(stem.grid), torch.arange(stem.grid), indexing="ij")
    angles = [axis.reshape(-1, 1) * turns for axis in (y, x)]
    found = torch.cat([wave(angle) for angle in angles for wave in (torch.sin, torch.cos)], dim=1)
    return torch.nn.functional.pad(found, (0, max(0, width - found.shape[1])))[:, :width]


MODULE = DenoisingTransformer
