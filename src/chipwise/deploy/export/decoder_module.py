"""Decoders as torch modules for converters, which run in the environments of ``core/environments.py``.

XNNPACK has matrix products, sums and square roots but no gather, and ExecuTorch does not run means in it. Here a mean
is therefore a matrix product with a constant row, and the halves of a head are exchanged by a matrix product with a
constant matrix. XNNPACK can then run all operators of a layer, except attention, in one call.

Axes: T new tokens, D model width, N query heads, K KV heads, H head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chipwise.model.blocks.attention.module import AttentionModule
from chipwise.model.kinds.text.module import LayerModule, Transformer

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Function that computes a layer's attention.

It gets the layer's number, its queries (1, T, N, H) and its keys and values (1, T, K, H), and returns (1, T, N, H).
"""


class Norm(nn.Module):
    """RMSNorm or LayerNorm that computes means as matrix products with a constant row."""

    row: Tensor
    eps: Tensor

    def __init__(self, norm: nn.RMSNorm | nn.LayerNorm) -> None:
        super().__init__()
        width = norm.weight.shape[0]
        self.centred, self.weight, self.bias = isinstance(norm, nn.LayerNorm), norm.weight, getattr(norm, "bias", None)
        self.register_buffer("row", torch.full((1, width), 1 / width))
        self.register_buffer("eps", torch.tensor([norm.eps]))

    def forward(self, x: Tensor) -> Tensor:
        """Returns ``x``, of shape (1, width), (1, T, width) or (1, T, N, width), normed."""
        # LiteRT's converter multiplies tensors of at most three axes by one row
        flat = x.flatten(1, 2) if x.dim() == 4 else x
        if self.centred:
            flat = flat - F.linear(flat, self.row)
        flat = flat * torch.rsqrt(F.linear(flat * flat, self.row) + self.eps) * self.weight
        return (flat if self.bias is None else flat + self.bias).view(x.shape)


class Decoder(nn.Module):
    """``model`` without attention and KV cache; subclasses add these two."""

    products: ClassVar[bool] = True  # whether norms compute means as matrix products

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        arch = model.arch
        self.layers, self.embedding, self.positions = model.layers, model.embedding, model.positions
        self.order, self.arch, self.norm = model.order, arch, model.norm
        self.head = nn.Linear(arch.d_model, arch.vocab_size, bias=False)
        self.head.weight = nn.Parameter(model.head_table.detach().clone())
        blocks = [layer.attention for layer in arch.layers if layer.attention is not None]
        self.sizes = sorted({block.head_size for block in blocks if block.rope})
        for size in self.sizes:
            cos, sin = model._rotary(size, torch.device("cpu"))
            self.register_buffer(f"cos{size}", torch.cat((cos, cos), -1))
            self.register_buffer(f"sin{size}", torch.cat((-sin, sin), -1))
            self.register_buffer(f"swap{size}", torch.eye(size).roll(size // 2, 0))
        for name, module in list(self.named_modules()):
            if self.products and isinstance(module, nn.RMSNorm | nn.LayerNorm):
                self.set_submodule(name, Norm(module))

    def states(self, tokens_1T: Tensor, positions_T: Tensor, attend: Attend) -> Tensor:
        """The residual stream (1, T, D) after the last layer."""
        angles = {
            size: tuple(
                F.embedding(positions_T, getattr(self, f"{part}{size}"))[None, :, None] for part in ("cos", "sin")
            )
            for size in self.sizes
        }
        x_1TD: Tensor = self.embedding(tokens_1T)
        if self.positions is not None:
            x_1TD = x_1TD + self.positions(positions_T)
        for number, owner in enumerate(self.order):
            layer: LayerModule = getattr(self.layers, owner)
            if layer.attention is not None:
                q, k, v = self._projected(layer.attention, layer.read("attention", x_1TD), angles)
                y_1TD = layer.attention.out(attend(number, q, k, v).flatten(2))
                x_1TD = layer.added("attention", x_1TD, y_1TD)
            if layer.ffn is not None:
                x_1TD = layer.added("ffn", x_1TD, layer.ffn(layer.read("ffn", x_1TD)))
        return x_1TD

    def logits(self, x_1D: Tensor) -> Tensor:
        """Logits (1, V) of one position of the residual stream."""
        logits_1V: Tensor = self.head(self.norm(x_1D))
        return logits_1V

    def _projected(
        self, module: AttentionModule, h_1TD: Tensor, angles: dict[int, tuple[Tensor, ...]]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (1, T, N, H), keys and values (1, T, K, H) of the new tokens, normed and rotated."""
        size = module.block.head_size
        q, k, v = (part(h_1TD).view(1, h_1TD.shape[1], -1, size) for part in (module.q, module.k, module.v))
        if module.q_norm is not None and module.k_norm is not None:
            q, k = module.q_norm(q), module.k_norm(k)
        if module.block.rope:
            cos, sin = angles[size]
            swap = getattr(self, f"swap{size}")
            q, k = (x * cos + F.linear(x, swap) * sin for x in (q, k))
        return q, k, v
