"""Changes to architectures that several rules make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from chipwise.errors import Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.feed_forward import FeedForward, FeedForwardBlock, MixtureOfExperts
from chipwise.model.arch.mixers import Attention, Mixer


def each_attention(arch: ArchSpec, change: Callable[[Attention], Mixer]) -> ArchSpec:
    """Returns ``arch`` with every grouped-query attention changed."""
    layers = tuple(
        replace(layer, attention=change(layer.attention)) if isinstance(layer.attention, Attention) else layer
        for layer in arch.layers
    )
    return replace(arch, layers=layers)


def each_ffn(arch: ArchSpec, change: Callable[[FeedForward], FeedForwardBlock]) -> ArchSpec:
    """Returns ``arch`` with every plain feed-forward changed."""
    layers = tuple(
        replace(layer, ffn=change(layer.ffn)) if isinstance(layer.ffn, FeedForward) else layer for layer in arch.layers
    )
    return replace(arch, layers=layers)


def attentions(arch: ArchSpec) -> list[Attention]:
    """Every grouped-query attention, in order."""
    return [layer.attention for layer in arch.layers if isinstance(layer.attention, Attention)]


def fewer_kv_heads(blocks: Sequence[Attention], *, least: int) -> int | None:
    """About a quarter of the KV heads, at least ``least``: the largest number that divides the heads of every block."""
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
    """``value`` rounded up to a multiple."""
    return -(-value // multiple) * multiple


def columns_of_tile(sheet: DeviceProfile | None, dtype: str) -> int:
    """Columns of a product's tile: 128 on GPUs with a published tile, otherwise the width of a CPU vector.

    Libraries build tiles from several instructions; cuBLAS and CUTLASS have used 128 columns since Volta.
    """
    if sheet is None:
        return 16  # sixteen 32-bit values: one AVX-512 register
    try:
        _, n, _ = sheet.tile(dtype)
    except Unsupported:
        return 64
    return max(128, n) if sheet.kind == "gpu" else n
