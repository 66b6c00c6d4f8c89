"""Names and shapes of the weights of blocks and of stacks of layers, as in the torch modules."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Block
from chipwise.model.arch.mixers import Attention, ConvModule

Shape = tuple[int, ...]
Shapes = Iterator[tuple[str, Shape]]


def layer_shapes(arch: ArchSpec) -> Shapes:
    """Names and shapes: first the tables of position biases, then the weights of layers that have their own weights."""
    owned = list(arch.owned_layers())
    for i, layer in owned:
        if layer.attention is not None and layer.attention.relative_buckets:
            yield f"positions.{i}.weight", (layer.attention.relative_buckets, layer.attention.heads)
    behind = arch.norm_place == "post" and arch.reads_tokens
    for i, layer in owned:
        for name, block in layer.named_blocks():
            place = f"layers.{i}.{name}"
            if not behind:
                yield from norm(arch, f"{place}_norm")
            if taps := getattr(layer, f"{name}_conv", 0):
                yield f"{place}_conv.weight", (arch.d_model, 1, taps)
            yield from _block(block, arch.d_model, place)
            if behind:
                yield from norm(arch, f"{place}_norm")
            if arch.norm_place == "both":
                yield from norm(arch, f"{place}_post_norm")


def norm(arch: ArchSpec, place: str) -> Shapes:
    """Names and shapes of a norm over the model's width; empty if norms have no weights."""
    if arch.norm_weight:
        yield f"{place}.weight", (arch.d_model,)
    if arch.norm_bias:
        yield f"{place}.bias", (arch.d_model,)


def linear(place: str, rows: int, columns: int, *, bias: bool) -> Shapes:
    """Names and shapes of a (rows, columns) matrix and, with ``bias``, of its bias."""
    yield f"{place}.weight", (rows, columns)
    if bias:
        yield f"{place}.bias", (rows,)


def feed_forward(block: FeedForward, d_model: int, place: str) -> Shapes:
    """Names and shapes of the two or three matrices of a feed-forward."""
    width, d_model = block.width // block.groups, d_model // block.groups
    for group in range(block.groups):
        number = "" if block.groups == 1 else f".{group}"
        for name in ("gate", "up") if block.gated else ("up",):
            yield from linear(f"{place}.{name}{number}", width, d_model, bias=block.bias)
        yield from linear(f"{place}.down{number}", d_model, width, bias=block.bias)


def _block(block: Block, d_model: int, place: str) -> Shapes:
    if isinstance(block, Attention):
        yield from _attention(block, d_model, place)
    elif isinstance(block, FeedForward):
        yield from feed_forward(block, d_model, place)
    elif isinstance(block, ConvModule):
        yield from linear(f"{place}.into", 2 * d_model, d_model, bias=True)
        yield f"{place}.filter.weight", (d_model, 1, block.taps)
        yield f"{place}.filter.bias", (d_model,)
        yield f"{place}.norm.weight", (d_model,)
        yield f"{place}.norm.bias", (d_model,)
        yield from linear(f"{place}.out", d_model, d_model, bias=True)


def _attention(block: Attention, d_model: int, place: str) -> Shapes:
    yield from linear(f"{place}.q", block.query_width, d_model, bias=block.qkv_bias)
    yield from linear(f"{place}.k", block.kv_width, d_model, bias=block.qkv_bias and block.key_bias)
    yield from linear(f"{place}.v", block.kv_width, d_model, bias=block.qkv_bias)
    if block.pointwise:
        yield from linear(f"{place}.gate", block.query_width, d_model, bias=block.qkv_bias)
        yield f"{place}.norm.weight", (block.query_width,)
    yield from linear(f"{place}.out", d_model, block.query_width, bias=block.out_bias)
    if block.qk_norm:
        yield f"{place}.q_norm.weight", (block.head_size,)
        yield f"{place}.k_norm.weight", (block.head_size,)
