"""Changes that rules make to architectures: what they share, and nothing that decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from chipwise.core.errors import Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.spec import ArchSpec, Attention, FeedForward
from chipwise.spec.feed_forward import MixtureOfExperts


def each_attention(arch: ArchSpec, change: Callable[[Attention], Any]) -> ArchSpec:
    """``arch`` with every grouped-query attention changed."""
    layers = tuple(
        replace(layer, attention=change(layer.attention)) if isinstance(layer.attention, Attention) else layer
        for layer in arch.layers
    )
    return replace(arch, layers=layers)


def each_ffn(arch: ArchSpec, change: Callable[[FeedForward], Any]) -> ArchSpec:
    """``arch`` with every plain feed-forward changed."""
    layers = tuple(
        replace(layer, ffn=change(layer.ffn)) if isinstance(layer.ffn, FeedForward) else layer for layer in arch.layers
    )
    return replace(arch, layers=layers)


def attentions(arch: ArchSpec) -> list[Attention]:
    """Every grouped-query attention, in order."""
    return [layer.attention for layer in arch.layers if isinstance(layer.attention, Attention)]


def fewer_kv_heads(blocks: Sequence[Attention], *, least: int) -> int | None:
    """About a quarter of the KV heads, at least ``least``: the most that divide the heads of every block."""
    widest = max((block.kv_heads for block in blocks), default=0)
    for count in range(max(widest // 4, least, 1), least - 1, -1):
        if count < widest and all(block.heads % count == 0 for block in blocks):
            return count
    return None


def feed_forwards(arch: ArchSpec) -> list[FeedForward]:
    """Every plain feed-forward, in order."""
    return [layer.ffn for layer in arch.layers if isinstance(layer.ffn, FeedForward)]


def mixture(arch: ArchSpec) -> bool:
    """Whether any layer has experts."""
    return any(isinstance(layer.ffn, MixtureOfExperts) for layer in arch.layers)


def up_to(value: int, multiple: int) -> int:
    """The least multiple that is not below ``value``."""
    return -(-value // multiple) * multiple


def columns_of_tile(sheet: DeviceProfile | None, dtype: str) -> int:
    """Columns that one tile of products works on: 128 on GPUs with a published tile, the vector of a CPU elsewhere.

    Libraries build their tiles from several instructions: 128 columns hold for cuBLAS and CUTLASS since Volta.
    """
    if sheet is None:
        return 16  # sixteen 32-bit values: one AVX-512 register
    try:
        _, n, _ = sheet.tile(dtype)
    except Unsupported:
        return 64
    return max(128, n) if sheet.kind == "gpu" else n
