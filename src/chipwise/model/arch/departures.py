"""Describes, for error messages, which blocks and fields of a model chipwise does not support."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import fields
from typing import Any

from chipwise.core.stored import Stored
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention

_WORDS = {  # descriptions of fields whose values are too long for one line
    "denoiser": "a denoiser",
    "encoder": "an encoder in addition to the decoder",
    "encoder_stem": "an encoder that reads sound",
    "projector": "a projector into a decoder",
    "question": "a question about the image",
    "stages": "a pyramid of stages before the layers",
    "stem": "a stem for images, sound or items",
    "towers": "a tower for images or sound",
}

_MEANS = {  # explanations of fields with short names
    "bias_network": "a network that computes position biases",
    "cosine": "cosine similarity instead of dot products",
    "key_bias": "queries have biases, but keys have none",
    "patch_rope": "rotary positions by row and column of the patch",
    "square": "attention within windows of patches",
    "scale": "a learned factor on each block's output",
}
_LATER: dict[type, tuple[tuple[str, Any], ...]] = {}  # for each class: names and defaults of its ``later`` fields


def unbuilt(value: Any, *, free: Collection[str] = ()) -> Iterator[str]:
    """Yields a phrase for each field of ``value`` that is marked ``later`` and does not have its default value.

    Fields in ``free`` are skipped. :func:`_later` says which fields are marked.

    >>> from chipwise.model.published.read import resolve
    >>> next(unbuilt(resolve("smolvlm-256m")))
    'a tower for images or sound is not supported'
    """
    value = value.stored() if isinstance(value, Stored) else value
    for name, default in _later(type(value)):
        found = getattr(value, name)
        if name not in free and found != default:
            plain = found is None or isinstance(found, bool | int | float | str)
            means = f" ({_MEANS[name]})" if name in _MEANS else ""
            yield f"{_WORDS.get(name) or (f'{name} = {found!r:.60}{means}' if plain else name)} is not supported"


def _later(kind: type) -> tuple[tuple[str, Any], ...]:
    """Names and defaults of the fields with the metadata ``later``, which were added after the first release."""
    if kind not in _LATER:
        _LATER[kind] = tuple((field.name, field.default) for field in fields(kind) if field.metadata.get("later"))
    return _LATER[kind]


def in_layers(layers: Iterable[Layer], departures: Callable[[Layer], Iterator[str]]) -> Iterator[str]:
    """The phrases that ``departures`` yields for the layers; a phrase starts with its layer's number."""
    for i, layer in enumerate(layers):
        yield from (f"layers[{i}].{found}" for found in departures(layer))


def block_departures(layer: Layer, *, free: Collection[str]) -> Iterator[str]:
    """A phrase for each block and each field in ``layer`` that chipwise never builds. Skips fields in ``free``."""
    yield from unbuilt(layer, free=free)
    for name, block, built in (("attention", layer.attention, Attention), ("ffn", layer.ffn, FeedForward)):
        if block is not None and not isinstance(block, built):
            yield f"{name} is a {type(block).__name__} block, which is not supported"
        elif block is not None:
            yield from (f"{name}.{found}" for found in unbuilt(block, free=free))
    if isinstance(layer.ffn, FeedForward) and layer.ffn.activation == "relu2":
        yield "ffn.activation relu2 is not supported"


def encoding_departures(layer: Layer, *, free: Collection[str], where: str, causal: bool = False) -> Iterator[str]:
    """Like :func:`block_departures`, plus phrases for features that chipwise builds only in models with a KV cache.

    These features are shared weights, grouped KV heads, rotary positions, norms of queries and keys, and windows. Their
    phrases end with ``where`` ("for images"). ``causal`` is the required value of attention's field ``causal``.
    """
    yield from block_departures(layer, free=free)
    if layer.shares is not None:
        yield f"shares is not supported {where}"
    if isinstance(layer.attention, Attention):
        found = heads_departures(layer.attention, where=where, causal=causal)
        yield from (f"attention.{each}" for each in found)


def heads_departures(block: Attention, *, where: str, causal: bool = False) -> Iterator[str]:
    """A phrase for each field of an attention block that chipwise builds only in models with a KV cache."""
    if block.causal != causal:
        yield f"causal = {block.causal} is not supported {where}"
    if block.kv_heads != block.heads:
        yield f"kv_heads must equal heads {where}"
    for name in ("rope", "qk_norm", "window"):
        if getattr(block, name):
            yield f"{name} is not supported {where}"
