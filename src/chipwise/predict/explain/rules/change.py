"""Changes to architectures, for use by several rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from chipwise.errors import Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.feed_forward import FeedForward, FeedForwardBlock, MixtureOfExperts
from chipwise.model.arch.mixers import Attention, Mixer


def each_attention(arch: ArchSpec, change: Callable[[Attention], Mixer]) -> ArchSpec:
    """Returns ``arch`` with ``change`` applied to each grouped-query attention block."""
    layers = tuple(
        replace(layer, attention=change(layer.attention)) if isinstance(layer.attention, Attention) else layer
        for layer in arch.layers
    )
    return replace(arch, layers=layers)


def each_ffn(arch: ArchSpec, change: Callable[[FeedForward], FeedForwardBlock]) -> ArchSpec:
    """Returns ``arch`` with ``change`` applied to each feed-forward block that is not a mixture of experts."""
    layers = tuple(
        replace(layer, ffn=change(layer.ffn)) if isinstance(layer.ffn, FeedForward) else layer for layer in arch.layers
    )
    return replace(arch, layers=layers)


def attentions(arch: ArchSpec) -> list[Attention]:
    """The grouped-query attention blocks, in the order of the layers."""
    return [layer.attention for layer in arch.layers if isinstance(layer.attention, Attention)]


def fewer_kv_heads(blocks: Sequence[Attention], *, least: int) -> int | None:
    """The largest possible number of KV heads, up to a quarter of the present number.

    The number must divide the query heads of all blocks. If ``least`` is more than a quarter of the present number,
    only ``least`` is tried. None if no number is possible.
    """
    widest = max((block.kv_heads for block in blocks), default=0)
    for count in range(max(widest // 4, least, 1), least - 1, -1):
        if count < widest and all(block.heads % count == 0 for block in blocks):
            return count
    return None


def feed_forwards(arch: ArchSpec) -> list[FeedForward]:
    """The feed-forward blocks that are not mixtures of experts, in the order of the layers."""
    return [layer.ffn for layer in arch.layers if isinstance(layer.ffn, FeedForward)]


def mixture(arch: ArchSpec) -> bool:
    """Whether any layer has experts."""
    return any(isinstance(layer.ffn, MixtureOfExperts) for layer in arch.layers)


def up_to(value: int, multiple: int) -> int:
    """Rounds ``value`` up to a multiple of ``multiple``."""
    return -(-value // multiple) * multiple


def columns_of_tile(sheet: DeviceProfile | None, dtype: str) -> int:
    """Number of columns in an output tile of matrix products.

    On this machine it is the width of a CPU vector, and on chips without a published tile it is 64. On GPUs with a
    published tile it is at least 128, because libraries build tiles from several instructions; cuBLAS and CUTLASS have
    used 128 columns since Volta.
    """
    if sheet is None:
        return 16  # sixteen 32-bit values: one AVX-512 register
    try:
        _, n, _ = sheet.tile(dtype)
    except Unsupported:
        return 64
    return max(128, n) if sheet.kind == "gpu" else n
