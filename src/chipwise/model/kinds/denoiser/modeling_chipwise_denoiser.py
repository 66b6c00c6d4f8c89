"""A denoiser whose layers may differ from each other, for ``AutoModel`` with ``trust_remote_code=True``.

It needs ``chipwise_blocks.py`` in the same folder. ``config.arch`` describes the model, which cuts an image into
patches. Its layers have attention and feed-forward blocks, which are shifted, scaled and gated according to the time
and the label. A matrix turns the result back into pixels. ``generate`` generates images. Axes: B batch, C channels,
Y and X rows and columns, T tokens, F frequencies, D width.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chipwise.model.kinds.chipwise_blocks import (
    ArchModel,
    AttentionBlock,
    ChipwiseConfig,
    FeedForwardBlock,
    cut_patches,
)

__all__ = ["ChipwiseConfig", "ChipwiseDenoiser"]


class Patches(nn.Module):
    """Cuts an image into patches and projects them."""

    def __init__(self, stem: dict[str, Any], d_model: int) -> None:
        super().__init__()
        self.edge = stem["patch"]
        self.projection = nn.Linear(self.edge**2 * stem["channels"], d_model, bias=stem["bias"])

    def forward(self, x_BCYX: Tensor) -> Tensor:
        """The projected patches (B, T, D), without positions."""
        return self.projection(cut_patches(x_BCYX, self.edge))


class TimestepEmbedding(nn.Module):
    """Embeds a number from 0 to 1: sinusoids, a matrix, SiLU, a matrix."""

    def __init__(self, frequencies: int, d_model: int) -> None:
        super().__init__()
        self.frequencies = frequencies
        self.up = nn.Linear(frequencies, d_model)
        self.down = nn.Linear(d_model, d_model)

    def forward(self, number_B: Tensor) -> Tensor:
        """The embeddings (B, D) of numbers (B,)."""
        half = max(1, self.frequencies // 2)
        rates = [1000.0 * math.exp(-math.log(10_000.0) * (i % half) / half) for i in range(self.frequencies)]
        turns = torch.tensor(rates, device=number_B.device)
        phases = torch.tensor([math.pi / 2 if i < half else 0.0 for i in range(self.frequencies)], device=turns.device)
        waves_BF = torch.sin(number_B[:, None].float() * turns + phases)
        return self.down(F.silu(self.up(waves_BF.to(self.up.weight.dtype))))


def modulated(x_BTD: Tensor, shift_BD: Tensor, scale_BD: Tensor, eps: float) -> Tensor:
    """Applies a norm without weights, multiplies by 1 + scale, and adds the shift."""
    return F.layer_norm(x_BTD, x_BTD.shape[-1:], eps=eps) * (1 + scale_BD[:, None]) + shift_BD[:, None]


class DenoisingLayer(nn.Module):
    """One pre-norm residual layer."""

    def __init__(self, layer: dict[str, Any], arch: dict[str, Any], number: int) -> None:
        super().__init__()
        self.eps = arch["norm_eps"]
        attention, ffn = layer["attention"], layer["ffn"]
        self.attention = None if attention is None else AttentionBlock(attention, arch, number)
        self.ffn = None if ffn is None else FeedForwardBlock(ffn, arch, number)

    def forward(self, x_BTD: Tensor, parts: Sequence[Tensor]) -> Tensor:
        """The residual stream after the layer. ``parts`` holds shift, scale and gate of each block, each (B, D)."""
        if self.attention is not None:
            shift, scale, gate = parts[:3]
            x_BTD = x_BTD + gate[:, None] * self.attention(modulated(x_BTD, shift, scale, self.eps))
        if self.ffn is not None:
            shift, scale, gate = parts[-3:]
            x_BTD = x_BTD + gate[:, None] * self.ffn(modulated(x_BTD, shift, scale, self.eps))
        return x_BTD


class Decoder(nn.Module):
    """Decodes latents to images."""

    def __init__(self, latents: dict[str, Any], depth: int) -> None:
        super().__init__()
        self.factor = latents["factor"]
        shapes = ((depth, latents["width"]), (latents["width"], self.factor**2 * latents["channels"]))
        self.convs = nn.ModuleList([nn.Conv2d(into, out, 3, padding=1) for into, out in shapes])

    def forward(self, x_BLYX: Tensor) -> Tensor:
        """The images (B, C, factor · Y, factor · X)."""
        return F.pixel_shuffle(self.convs[1](F.gelu(self.convs[0](x_BLYX))), self.factor)


def moves(steps: int, denoiser: dict[str, Any]) -> list[tuple[float, float, float]]:
    """For each denoising step: its time, and the factors for the current and the previous velocity."""
    shift = denoiser.get("shift", 1.0)
    found: list[tuple[float, float, float]] = []
    last = 0.0
    times = [i / (i + shift * (steps - i)) for i in range(steps + 1)]
    for time, end in itertools.pairwise(times):
        size = end - time
        ahead = size / last / 2 if last and denoiser.get("solver") == "multistep" else 0.0
        found.append((time, size * (1 + ahead), -size * ahead))
        last = size
    return found


class ChipwiseDenoiser(ArchModel):
    """A denoiser: predicts the velocity of noisy images, and generates images."""

    main_input_name = "image"
    _no_split_modules = ("DenoisingLayer",)

    def __init__(self, config: ChipwiseConfig) -> None:
        super().__init__(config)
        arch, d = self.arch, self.arch["d_model"]
        stem, denoiser = arch["stem"], arch["denoiser"]
        blocks = [(layer["attention"] is not None) + (layer["ffn"] is not None) for layer in arch["layers"]]
        widths = {str(i): 3 * d * count for i, count in enumerate(blocks) if count} | {"end": 2 * d}
        self.stem = Patches(stem, d)
        self.positions = nn.Embedding(arch["max_tokens"], d)
        no_label = denoiser.get("guidance", 1.0) != 1.0  # its row in the label table is the last
        self.labels = nn.Embedding(denoiser["labels"] + no_label, d)
        self.told = nn.ModuleDict({"time": TimestepEmbedding(denoiser["frequencies"], d)})
        self.layers = nn.ModuleDict({str(i): DenoisingLayer(layer, arch, i) for i, layer in enumerate(arch["layers"])})
        self.modulations = nn.ModuleDict({name: nn.Linear(d, width) for name, width in widths.items()})
        self.head = nn.Linear(d, stem["patch"] ** 2 * stem["channels"])
        latents = denoiser.get("latents")
        self.decoder = None if latents is None else Decoder(latents, stem["channels"])
        self.post_init()

    def forward(self, image: Tensor, time: Tensor, label: Tensor) -> Tensor:
        """The velocity (B, C, Y, X) of images at times (B,) from 0 (noise) to 1 (image)."""
        arch, d = self.arch, self.arch["d_model"]
        told = F.silu(self.labels(label) + self.told["time"](time))
        x = self.stem(image) + self.positions.weight
        for name, layer in self.layers.items():
            parts = self.modulations[name](told).split(d, dim=-1) if name in self.modulations else ()
            x = layer(x, parts)
        shift, scale = self.modulations["end"](told).split(d, dim=-1)
        x = self.head(modulated(x, shift, scale, arch["norm_eps"]))
        stem = arch["stem"]
        edge, channels = stem["patch"], stem["channels"]
        grid = stem["image_size"] // edge
        parts = x.view(-1, grid, grid, channels, edge, edge).permute(0, 3, 1, 4, 2, 5)
        return parts.reshape(-1, channels, stem["image_size"], stem["image_size"])

    @torch.no_grad()
    def generate(
        self,
        labels: Sequence[int] | Tensor,
        *,
        steps: int | None = None,
        guidance: float | None = None,
        seed: int = 0,
    ) -> Tensor:
        """Generates an image for each label: (B, C, Y, X), values from -1 to 1.

        ``steps`` and ``guidance`` replace the design's number of steps and guidance scale. A scale other than 1 needs a
        model that was trained both with and without labels.
        """
        label = torch.as_tensor(labels, dtype=torch.long).to(self.device)
        scale = self.config.guidance_scale if guidance is None else guidance
        stem, count = self.arch["stem"], steps or self.config.num_inference_steps
        shape = (len(label), stem["channels"], stem["image_size"], stem["image_size"])
        image = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(self.device, self.dtype)
        last = torch.zeros_like(image)
        for start, now, before in moves(count, self.arch["denoiser"]):
            time = torch.full((len(label),), start, device=self.device)
            velocity = self(image, time, label)
            if scale != 1.0:
                without = self(image, time, torch.full_like(label, self.labels.num_embeddings - 1))
                velocity = without + scale * (velocity - without)
            image = image + now * velocity + before * last
            last = velocity
        return image if self.decoder is None else self.decoder(image)
