"""Formats of keys and values of a GGUF decoder: the bytes, the seconds and the divergence that each costs."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from chipwise.deploy.runtimes.ggml import TYPES, ggml
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.attention.module import AttentionModule

CACHES: Mapping[str, str] = {"f16": "F16", "q8_0": "Q8_0", "q4_0": "Q4_0"}
"""llama.cpp's names of the cache formats that are offered, and ggml's."""
USUAL_CACHE = "f16"  # llama.cpp's default
_LEAST_BLOCK = 64  # values that are rotated together at least


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFormat:
    """A format of keys and values at one context."""

    name: str
    size_bytes: int = 0  # of all keys and values; 0 where no context is stated
    loss: float = 0.0  # divergence in nats a token that it adds
    extra_s: float = 0.0  # seconds of a decode step beyond those with the usual cache


def cache_bytes(arch: ArchSpec, kind: str, context: int) -> int:
    """Bytes of keys and values of ``context`` tokens."""
    heads = [each.attention for each in arch.layers if each.attention is not None]
    return sum(2 * TYPES[CACHES[kind]].matrix_bytes(context * each.kv_heads, each.head_size) for each in heads)


def offered_caches(arch: ArchSpec) -> tuple[str, ...]:
    """The formats whose blocks the heads' size fills."""
    sizes = {each.attention.head_size for each in arch.layers if each.attention is not None}
    return tuple(name for name, kind in CACHES.items() if all(TYPES[kind].fits(size) for size in sizes))


class RoundedCacheAttention(AttentionModule):
    """Attention whose keys and values are rounded as llama.cpp's cache rounds them: by rows of a head.

    Rows of a head whose size is a multiple of 64 are rotated by Hadamard matrices before they are rounded: keys by the
    largest one that divides the size, values by blocks of 64.

    References:
        ``attn_rot_k`` and ``attn_rot_v`` in llama.cpp's ``src/llama-kv-cache.cpp``.
    """

    kind = "F16"
    interleaved = False  # whether llama.cpp keeps neighbouring values of a key where this module has its two halves

    def project(self, x_BTD: Tensor, rotary: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, and rounded keys and values, each (B, heads, T, H)."""
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
    """The rotation (size, size) of a row, its own inverse: blocks of the largest power of two up to ``most``."""
    block = min(size & -size, most)
    if block < _LEAST_BLOCK:
        return torch.eye(size)
    made = torch.ones(1, 1)
    while len(made) < block:
        made = torch.cat((torch.cat((made, made), 1), torch.cat((made, -made), 1)))
    return torch.kron(torch.eye(size // block), made / block**0.5)
