"""Builds a supernet's architecture: the smallest model that contains all given designs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from chipwise.errors import InputError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.walk.slicing import kept_layers

T = TypeVar("T")


def whole_of(archs: Iterable[ArchSpec], *, name: str = "whole") -> ArchSpec:
    """The smallest model that contains all of ``archs``. Layers share no weights; attention is causal.

    Raises:
        InputError: There are no designs, or they differ in a property that slicing cannot change: norm, positions,
            rotary base.
    """
    archs = list(dict.fromkeys(archs))
    if not archs:
        raise InputError("at least one design is needed to train shared weights")
    one = archs[0]
    for field in ("norm", "norm_place", "norm_bias", "norm_eps", "positions", "rope_theta"):
        kinds = {getattr(arch, field) for arch in archs}
        if len(kinds) > 1:
            raise InputError(f"designs that share weights must agree in {field}, but have {sorted(map(str, kinds))}")
    depth = max(len(arch.layers) for arch in archs)
    layers = [Layer(attention=None, ffn=None)] * depth
    for arch in archs:
        for number, layer in zip(kept_layers(len(arch.layers), depth), arch.layers, strict=True):
            layers[number] = _holding(layers[number], layer)
    return replace(
        one.of_vocabulary(max(arch.vocab_size for arch in archs)).with_tied(all(arch.tie_embeddings for arch in archs)),
        name=name,
        d_model=max(arch.d_model for arch in archs),
        max_tokens=max(arch.max_tokens for arch in archs),
        layers=tuple(layers),
    )


def _holding(large: Layer, small: Layer) -> Layer:
    """The smallest layer that contains both layers."""
    return Layer(
        attention=_either(large.attention, small.attention, _attention),
        ffn=_either(large.ffn, small.ffn, _feed_forward),
        attention_conv=max(large.attention_conv, small.attention_conv),
        ffn_conv=max(large.ffn_conv, small.ffn_conv),
    )


def _attention(one: Attention, other: Attention) -> Attention:
    kv_heads = max(one.kv_heads, other.kv_heads)
    heads = -(-max(one.heads, other.heads) // kv_heads) * kv_heads
    return replace(
        one,
        heads=heads,
        kv_heads=kv_heads,
        head_size=max(one.head_size, other.head_size),
        qkv_bias=one.qkv_bias or other.qkv_bias,
        out_bias=one.out_bias or other.out_bias,
        qk_norm=one.qk_norm or other.qk_norm,
        window=None,
    )


def _feed_forward(one: FeedForward, other: FeedForward) -> FeedForward:
    return replace(
        one,
        width=max(one.width, other.width),
        gated=one.gated or other.gated,
        bias=one.bias or other.bias,
    )


def _either(one: T | None, other: T | None, both: Callable[[T, T], T]) -> T | None:
    if one is None or other is None:
        return one if other is None else other
    return both(one, other)
