"""Runs a GGUF file's decoder in torch, layer by layer, so that only one layer's weights are in memory.

Axes: B windows of text, T tokens, D model width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chipwise.core.arrays import Float32Array, Float64Array
from chipwise.deploy.export.gguf import NORMS, PROJECTIONS, layout, split_halves
from chipwise.deploy.export.gguf_read import GgufFile, read_arch
from chipwise.deploy.runtimes.ggml import TYPES, Rounding, ggml
from chipwise.design.quantize.kv_cache import CACHES, USUAL_CACHE, RoundedCacheAttention
from chipwise.errors import SpecError
from chipwise.model.arch.layer import Layer
from chipwise.model.kinds.text.module import LayerModule
from chipwise.model.nn import rotary

FP16_LARGEST = 65504.0


class StreamedDecoder:
    """The decoder of a GGUF file, whose layers are read from the file when they are needed.

    Args:
        file: A file of a supported architecture (llama, deci, qwen2, qwen3), with tensors of any types.

    Raises:
        Unsupported: The architecture is not supported here.
    """

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.arch = read_arch(file)
        self.blocks = layout(self.arch)
        self.head_name = "token_embd.weight" if self.arch.tie_embeddings else "output.weight"
        self._angles: tuple[Tensor, Tensor] | None = None

    def matrix(self, name: str) -> Float32Array:
        """A tensor of the file in FP32, with rows in the file's order.

        Raises:
            SpecError: The tensor is missing or has values that are not finite.
        """
        tensor = self.file.tensors.get(name)
        if tensor is not None and tensor.tensor_type.name in TYPES and len(tensor.shape) == 2:
            kind, width = TYPES[tensor.tensor_type.name], int(tensor.shape[0])
            stored = np.ascontiguousarray(tensor.data).view(np.uint8).reshape(int(tensor.shape[1]), -1)
            values = ggml().unpack(stored, kind, width)
        else:
            values = np.require(self.file.values(name), requirements="W")
        if not np.isfinite(values).all():
            raise SpecError("has values that are not finite (NaN or infinite)", file=str(self.file.path), field=name)
        return values

    def embedded(self, tokens_BT: Tensor) -> Tensor:
        """Token embeddings of ``tokens_BT``, (B, T, D)."""
        return F.embedding(tokens_BT, torch.from_numpy(self.matrix("token_embd.weight")))

    def layer(self, number: int, cache: str = USUAL_CACHE) -> LayerModule:
        """A layer with its weights, without gradients; keys and values are rounded to the format ``cache``."""
        block = self.blocks[number]
        attention = None if block.attention is None else block.attention[0]
        with torch.device("meta"):
            module = LayerModule(self.arch, Layer(attention=attention, ffn=block.ffn[0]))
            if attention is not None and cache != USUAL_CACHE:
                module.attention = RoundedCacheAttention(attention, self.arch.d_model, self.arch.norm_eps)
                module.attention.kind, module.attention.interleaved = CACHES[cache], self.file.interleaves
        weights = {}
        for name in module.state_dict():
            place, _, part = name.rpartition(".")
            values = self.matrix(f"blk.{number}.{({**PROJECTIONS, **NORMS})[place]}.{part}")
            heads = {}
            if attention is not None and self.file.interleaves:
                heads = {"attention.q": attention.heads, "attention.k": attention.kv_heads}
            weights[name] = torch.from_numpy(split_halves(values, heads[place]) if place in heads else values)
        module.load_state_dict(weights, assign=True)
        return module.requires_grad_(False)

    def matrix_places(self, number: int) -> dict[str, str]:
        """Maps each matrix's name in the module of :meth:`layer` to its name in the file."""
        named = {place: f"blk.{number}.{name}.weight" for place, name in PROJECTIONS.items()}
        return {place: name for place, name in named.items() if name in self.file.tensors}

    def run(self, layer: LayerModule, number: int, x_BTD: Tensor) -> Tensor:
        """The residual stream after layer ``number``, from the stream before it."""
        attention = self.blocks[number].attention
        angles = None
        if attention is not None and attention[0].rope:
            if self._angles is None:
                self._angles = rotary.tables(attention[0].head_size, self.arch.max_tokens, self.arch.rope_theta)
            angles = (self._angles[0][: x_BTD.shape[1]], self._angles[1][: x_BTD.shape[1]])
        made: Tensor = layer(x_BTD, angles, None)[0]
        return made

    def normed(self, x_BTD: Tensor) -> Tensor:
        """The head's input, from the residual stream after the last layer."""
        weight = torch.from_numpy(self.matrix("output_norm.weight"))
        return F.rms_norm(x_BTD, weight.shape, weight, self.arch.norm_eps)

    @torch.no_grad()
    def head_inputs(
        self,
        tokens_BT: Tensor,
        mix: Mapping[str, str] | None = None,
        cache: str = USUAL_CACHE,
        on_layer: Callable[[int, Tensor], None] = lambda n, x_BTD: None,
        begin: tuple[int, Tensor] | None = None,
    ) -> Tensor:
        """The head's input, (B, T, D); with a ``mix``, all matrices' inputs are rounded as in llama.cpp's kernels.

        After each layer, ``on_layer`` is called with the number of finished layers and the residual stream. A later
        call that gets both as ``begin`` continues after that layer.
        """
        done, x_BTD = begin or (0, self.embedded(tokens_BT))
        for number in range(done, len(self.blocks)):
            layer = self.layer(number, cache)
            for place, name in self.matrix_places(number).items() if mix else ():
                how = TYPES[mix[name]].activations if mix else "none"
                layer.get_submodule(place).register_forward_pre_hook(partial(_rounded_input, how))
            x_BTD = self.run(layer, number, x_BTD)
            on_layer(number + 1, x_BTD)
        h_BTD = self.normed(x_BTD)
        return rounded(h_BTD, TYPES[mix[self.head_name]].activations) if mix else h_BTD

    def head(self) -> Tensor:
        """The matrix of the head, (V, D)."""
        return torch.from_numpy(self.matrix(self.head_name))


def _rounded_input(how: Rounding, _module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (rounded(given[0], how), *given[1:])


@torch.no_grad()
def divergence(
    original: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], tokens_BT: Tensor
) -> tuple[Float64Array, Float64Array]:
    """For each text window: the other model's KL divergence from the original, and the original's next-token loss.

    Both are means over the window's tokens, in nats, (B,).

    Args:
        original: The input of the original model's head (B, T, D), and this head (V, D).
        other: The same two tensors of the other model.
        tokens_BT: The text.
    """
    kl, loss = [], []
    for h_TD, own_TD, tokens_T in zip(original[0], other[0], tokens_BT, strict=True):
        log_TV, own_TV = (h_TD @ original[1].T).log_softmax(-1), (own_TD @ other[1].T).log_softmax(-1)
        kl.append(float(F.kl_div(own_TV, log_TV, log_target=True, reduction="batchmean")))
        loss.append(float(F.nll_loss(log_TV[:-1], tokens_T[1:])))
    return np.array(kl), np.array(loss)


def rounded(x: Tensor, how: Rounding) -> Tensor:
    """Rounds ``x`` (..., K) as llama.cpp's kernels do before a matrix product with packed weights.

    References:
        ``quantize_row_q8_0`` (blocks of 32) and ``quantize_row_q8_K`` (blocks of 256) in ggml-quants.c.
    """
    if how == "none":
        return x
    if how == "f16":
        return x.clamp(-FP16_LARGEST, FP16_LARGEST).half().float()
    block = 32 if how == "q8_0" else 256
    if x.shape[-1] % block:
        raise ValueError(f"rows of {x.shape[-1]} values cannot be divided into blocks of {block}")
    parts = x.reshape(*x.shape[:-1], -1, block)
    scale = parts.abs().amax(-1, keepdim=True) / 127
    inverse = torch.where(scale > 0, 1 / scale.clamp_min(math.ulp(0.0)), 0.0)
    steps = (parts * inverse).round().clamp(-127, 127)
    made: Tensor = (steps * (scale.half().float() if how == "q8_0" else scale)).flatten(-2)
    return made
