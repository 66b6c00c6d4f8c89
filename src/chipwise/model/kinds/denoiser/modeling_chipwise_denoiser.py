"""A denoiser whose layers may all differ, for ``AutoModel`` with ``trust_remote_code=True``.

Self-contained: it needs torch and transformers. ``config.arch`` says what it is made of: patches of an image, layers of
attention (over all patches or within squares of them) and feed-forwards that are shifted, scaled and gated by its
conditions, and a matrix back to pixels. ``generate`` draws images. Axes: B batch, C channels, Y and X rows and
columns, T tokens, F frequencies, D width.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


class ChipwiseConfig(PretrainedConfig):
    """``arch`` is the architecture as plain data; the usual fields are derived from it."""

    model_type = "chipwise"

    def __init__(self, arch: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self.arch = arch
        if arch is not None:
            self.hidden_size = arch["d_model"]
            self.num_hidden_layers = len(arch["layers"])
            self.image_size, self.patch_size = arch["stem"]["image_size"], arch["stem"]["patch"]
            self.num_channels = arch["stem"]["channels"]
            self.num_inference_steps = arch["denoiser"]["steps"]
            self.guidance_scale = arch["denoiser"].get("guidance", 1.0)
        super().__init__(**kwargs)


class Patches(nn.Module):
    """From an image to its patches."""

    def __init__(self, stem: dict[str, Any], d_model: int) -> None:
        super().__init__()
        self.edge = stem["patch"]
        self.projection = nn.Linear(self.edge**2 * stem["channels"], d_model, bias=stem["bias"])

    def forward(self, x_BCYX: Tensor) -> Tensor:
        """The inputs of the first layer without their positions, (B, T, D)."""
        edge = self.edge
        batch, channels, rows, columns = x_BCYX.shape
        parts = x_BCYX.reshape(batch, channels, rows // edge, edge, columns // edge, edge)
        return self.projection(parts.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * edge * edge))


class Told(nn.Module):
    """A number from 0 to 1 as a vector: waves, a matrix, SiLU, a matrix."""

    def __init__(self, frequencies: int, d_model: int) -> None:
        super().__init__()
        self.frequencies = frequencies
        self.up = nn.Linear(frequencies, d_model)
        self.down = nn.Linear(d_model, d_model)

    def forward(self, number_B: Tensor) -> Tensor:
        """The vectors (B, D)."""
        half = max(1, self.frequencies // 2)
        rates = [1000.0 * math.exp(-math.log(10_000.0) * (i % half) / half) for i in range(self.frequencies)]
        turns = torch.tensor(rates, device=number_B.device)
        phases = torch.tensor([math.pi / 2 if i < half else 0.0 for i in range(self.frequencies)], device=turns.device)
        waves_BF = torch.sin(number_B[:, None].float() * turns + phases)
        return self.down(F.silu(self.up(waves_BF.to(self.up.weight.dtype))))


class AttentionBlock(nn.Module):
    """Every position sees all others of its image, or of its square of patches."""

    def __init__(self, block: dict[str, Any], d_model: int) -> None:
        super().__init__()
        self.heads, self.head_size = block["heads"], block["head_size"]
        self.square = block.get("square")
        width = self.heads * self.head_size
        self.q = nn.Linear(d_model, width, bias=block["qkv_bias"])
        self.k = nn.Linear(d_model, width, bias=block["qkv_bias"])
        self.v = nn.Linear(d_model, width, bias=block["qkv_bias"])
        self.out = nn.Linear(width, d_model, bias=block["out_bias"])

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The block's output, without the residual."""
        if self.square is None:
            return self.attend(x_BTD)
        batch, tokens, width = x_BTD.shape
        grid, side = int(tokens**0.5), self.square
        count = -(-grid // side)
        room = count * side - grid  # zeros fill up the squares at the far edges
        x = F.pad(x_BTD.reshape(batch, grid, grid, width), (0, 0, 0, room, 0, room))
        parts = x.reshape(batch, count, side, count, side, width).transpose(2, 3)
        y = self.attend(parts.reshape(-1, side * side, width))
        y = y.reshape(batch, count, count, side, side, width).transpose(2, 3)
        y = y.reshape(batch, count * side, count * side, width)[:, :grid, :grid]
        return y.reshape(batch, tokens, width)

    def attend(self, x_BTD: Tensor) -> Tensor:
        """Attention of every position to all."""
        batch, tokens, _ = x_BTD.shape
        q, k, v = (
            part(x_BTD).view(batch, tokens, self.heads, self.head_size).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, -1))


class FeedForwardBlock(nn.Module):
    """``down(act(up(x)))``, or ``down(act(gate(x)) * up(x))`` when gated."""

    def __init__(self, block: dict[str, Any], d_model: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[block["activation"]]
        width, bias = block["width"], block["bias"]
        self.gate = nn.Linear(d_model, width, bias=bias) if block["gated"] else None
        self.up = nn.Linear(d_model, width, bias=bias)
        self.down = nn.Linear(width, d_model, bias=bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The block's output, without the residual."""
        if self.gate is None:
            return self.down(self.activation(self.up(x_BTD)))
        return self.down(self.activation(self.gate(x_BTD)) * self.up(x_BTD))


def modulated(x_BTD: Tensor, shift_BD: Tensor, scale_BD: Tensor, eps: float) -> Tensor:
    """A norm without weights, then scaled by 1 + scale and shifted."""
    return F.layer_norm(x_BTD, x_BTD.shape[-1:], eps=eps) * (1 + scale_BD[:, None]) + shift_BD[:, None]


class DenoisingLayer(nn.Module):
    """One pre-norm residual layer."""

    def __init__(self, layer: dict[str, Any], arch: dict[str, Any]) -> None:
        super().__init__()
        self.eps = arch["norm_eps"]
        self.attention = None if layer["attention"] is None else AttentionBlock(layer["attention"], arch["d_model"])
        self.ffn = None if layer["ffn"] is None else FeedForwardBlock(layer["ffn"], arch["d_model"])

    def forward(self, x_BTD: Tensor, parts: Sequence[Tensor]) -> Tensor:
        """The residual stream after the layer; ``parts`` are shift, scale and gate (B, D) of each block."""
        if self.attention is not None:
            shift, scale, gate = parts[:3]
            x_BTD = x_BTD + gate[:, None] * self.attention(modulated(x_BTD, shift, scale, self.eps))
        if self.ffn is not None:
            shift, scale, gate = parts[-3:]
            x_BTD = x_BTD + gate[:, None] * self.ffn(modulated(x_BTD, shift, scale, self.eps))
        return x_BTD


class Decoder(nn.Module):
    """From latents to images."""

    def __init__(self, latents: dict[str, Any], depth: int) -> None:
        super().__init__()
        self.factor = latents["factor"]
        shapes = ((depth, latents["width"]), (latents["width"], self.factor**2 * latents["channels"]))
        self.convs = nn.ModuleList([nn.Conv2d(into, out, 3, padding=1) for into, out in shapes])

    def forward(self, x_BLYX: Tensor) -> Tensor:
        """The images (B, C, factor · Y, factor · X)."""
        return F.pixel_shuffle(self.convs[1](F.gelu(self.convs[0](x_BLYX))), self.factor)


def moves(steps: int, denoiser: dict[str, Any]) -> list[tuple[float, float, float, float]]:
    """Time and size of each step, and the factors of its velocity and of that of the step before."""
    shift = denoiser.get("shift", 1.0)
    found: list[tuple[float, float, float, float]] = []
    times = [i / (i + shift * (steps - i)) for i in range(steps + 1)]
    for time, end in itertools.pairwise(times):
        size = end - time
        ahead = size / found[-1][1] / 2 if found and denoiser.get("solver") == "multistep" else 0.0
        found.append((time, size, size * (1 + ahead), -size * ahead))
    return found


class ChipwiseDenoiser(PreTrainedModel):
    """The denoiser."""

    config_class = ChipwiseConfig
    main_input_name = "image"
    _no_split_modules = ("DenoisingLayer",)
    _supports_sdpa = True

    def __init__(self, config: ChipwiseConfig) -> None:
        super().__init__(config)
        arch = config.arch
        if arch is None:
            raise ValueError("the config holds no arch, so there is no model to build")
        self.arch_data, d = arch, arch["d_model"]
        stem, denoiser = arch["stem"], arch["denoiser"]
        told = ("time", "step") if denoiser["shortcut"] else ("time",)
        blocks = [(layer["attention"] is not None) + (layer["ffn"] is not None) for layer in arch["layers"]]
        widths = {str(i): 3 * d * count for i, count in enumerate(blocks) if count} | {"end": 2 * d}
        self.stem = Patches(stem, d)
        self.positions = nn.Embedding(arch["max_tokens"], d)
        no_label = denoiser.get("guidance", 1.0) != 1.0  # the table's last row stands for it
        self.labels = nn.Embedding(denoiser["labels"] + no_label, d)
        self.told = nn.ModuleDict({name: Told(denoiser["frequencies"], d) for name in told})
        self.layers = nn.ModuleDict({str(i): DenoisingLayer(layer, arch) for i, layer in enumerate(arch["layers"])})
        self.modulations = nn.ModuleDict({name: nn.Linear(d, width) for name, width in widths.items()})
        self.head = nn.Linear(d, stem["patch"] ** 2 * stem["channels"])
        latents = denoiser.get("latents")
        self.decoder = None if latents is None else Decoder(latents, stem["channels"])
        self.post_init()

    def forward(self, image: Tensor, time: Tensor, label: Tensor, step: Tensor | None = None) -> Tensor:
        """The velocity (B, C, Y, X) of images at times (B,) from 0 (noise) to 1 (image).

        ``step`` (B,) is the size of the step, an input of models trained with shortcuts.
        """
        arch, d = self.arch_data, self.arch_data["d_model"]
        numbers = {"time": time, "step": torch.zeros_like(time) if step is None else step}
        told = self.labels(label)
        for name, module in self.told.items():
            told = told + module(numbers[name])
        told = F.silu(told)
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
        """Images (B, C, Y, X) from -1 to 1 of these labels, in the steps that the model was chosen for unless given.

        A model that was trained without labels, too, is guided; ``guidance`` says by how much instead of its own.
        """
        label = torch.as_tensor(labels, dtype=torch.long).to(self.device)
        scale = self.config.guidance_scale if guidance is None else guidance
        stem, count = self.arch_data["stem"], steps or self.config.num_inference_steps
        shape = (len(label), stem["channels"], stem["image_size"], stem["image_size"])
        image = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(self.device, self.dtype)
        last = torch.zeros_like(image)
        for start, length, now, before in moves(count, self.arch_data["denoiser"]):
            time = torch.full((len(label),), start, device=self.device)
            size = torch.full_like(time, length)
            velocity = self(image, time, label, size)
            if scale != 1.0:
                without = self(image, time, torch.full_like(label, self.labels.num_embeddings - 1), size)
                velocity = without + scale * (velocity - without)
            image = image + now * velocity + before * last
            last = velocity
        return image if self.decoder is None else self.decoder(image)
