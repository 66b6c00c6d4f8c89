"""Formats of a GGUF decoder's KV cache, with their costs in bytes, seconds and divergence."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from chipwise.deploy.runtimes.ggml import TYPES, ggml
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.attention.module import AttentionModule

CACHES: Mapping[str, str] = {"f16": "F16", "q8_0": "Q8_0", "q4_0": "Q4_0"}
"""llama.cpp's names of the supported cache formats, with ggml's names."""
USUAL_CACHE = "f16"  # llama.cpp's default
_LEAST_BLOCK = 64  # fewest values that are rotated together


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFormat:
    """A KV-cache format with its costs at one context length."""

    name: str
    size_bytes: int = 0  # bytes of all keys and values; 0 if no context length is stated
    loss: float = 0.0  # divergence that the format adds, in nats per token
    extra_s: float = 0.0  # seconds of a decode step beyond those with the usual cache


def cache_bytes(arch: ArchSpec, kind: str, context: int) -> int:
    """Bytes of a KV cache of ``context`` tokens in the format ``kind``."""
    heads = [each.attention for each in arch.layers if each.attention is not None]
    return sum(2 * TYPES[CACHES[kind]].matrix_bytes(context * each.kv_heads, each.head_size) for each in heads)


def offered_caches(arch: ArchSpec) -> tuple[str, ...]:
    """The cache formats whose block size divides the head size."""
    sizes = {each.attention.head_size for each in arch.layers if each.attention is not None}
    return tuple(name for name, kind in CACHES.items() if all(TYPES[kind].fits(size) for size in sizes))


class RoundedCacheAttention(AttentionModule):
    """Attention that rounds keys and values as llama.cpp's KV cache does: separately for each token and head.

    If the head size is a multiple of 64, Hadamard matrices rotate keys and values before rounding. For keys, the matrix
    is as large as the greatest power of two that divides the head size; for values, it is 64 × 64.

    References:
        ``attn_rot_k`` and ``attn_rot_v`` in llama.cpp's ``src/llama-kv-cache.cpp``.
    """

    kind = "F16"
    interleaved = False  # whether llama.cpp interleaves the two halves of a key, which are separate here

    def project(self, x_BTD: Tensor, rotary: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, rounded keys and rounded values, each (B, heads, T, H)."""
        q_BNTH, k_BNTH, v_BNTH = super().project(x_BTD, rotary)
        if self.interleaved:
            shape = k_BNTH.shape
            pairs = k_BNTH.reshape(*shape[:-1], 2, -1).transpose(-1, -2).flatten(-2)
            kept = self._rounded(pairs, self.block.head_size)
            k_BNTH = kept.reshape(*shape[:-1], -1, 2).transpose(-1, -2).flatten(-2)
        else:
            k_BNTH = self._rounded(k_BNTH, self.block.head_size)
        return q_BNTH, k_BNTH, self._rounded(v_BNTH, _LEAST_BLOCK)

    def _rounded(self, x_BNTH: Tensor, most: int) -> Tensor:
        turn = hadamard(x_BNTH.shape[-1], most)
        rows = (x_BNTH @ turn).detach().contiguous().flatten(0, 2).numpy()
        return torch.from_numpy(ggml().round_trip(rows, TYPES[self.kind])).view(x_BNTH.shape) @ turn


@functools.cache
def hadamard(size: int, most: int) -> Tensor:
    """Block-diagonal Hadamard matrix (size, size), its own inverse; block size is a power of two up to ``most``."""
    from scipy import linalg

    block = min(size & -size, most)
    if block < _LEAST_BLOCK:
        return torch.eye(size)
    made = torch.from_numpy(linalg.hadamard(block, np.float32))
    return torch.kron(torch.eye(size // block), made / block**0.5)
