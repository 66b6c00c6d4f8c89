"""Describes the fields of a model that its kind cannot build."""

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
    "encoder": "an encoder beside the decoder",
    "encoder_stem": "an encoder that hears",
    "projector": "a projector behind it",
    "question": "a question behind the image",
    "stages": "stages before the layers",
    "stem": "a stem for images, sound or items",
    "towers": "a tower that sees or hears",
}

_MEANS = {  # explanations of fields with short names
    "bias_network": "a network that makes position biases",
    "cosine": "cosines in place of products",
    "key_bias": "queries with biases, and keys without",
    "patch_rope": "patches turned by row and column",
    "square": "attention within windows of patches",
    "scale": "a learned factor of each block's result",
}
_LATER: dict[type, tuple[tuple[str, Any], ...]] = {}  # by class: names and defaults of its later fields


def unbuilt(value: Any, *, free: Collection[str] = ()) -> Iterator[str]:
    """A phrase for each ``later`` field of ``value`` that differs from its default, except fields in ``free``.

    >>> from chipwise.model.published.read import resolve
    >>> next(unbuilt(resolve("smolvlm-256m")))
    'a tower that sees or hears is not built'
    """
    value = value.stored() if isinstance(value, Stored) else value
    for name, default in _later(type(value)):
        found = getattr(value, name)
        if name not in free and found != default:
            plain = found is None or isinstance(found, bool | int | float | str)
            means = f" ({_MEANS[name]})" if name in _MEANS else ""
            yield f"{_WORDS.get(name) or (f'{name} = {found!r:.60}{means}' if plain else name)} is not built"


def _later(kind: type) -> tuple[tuple[str, Any], ...]:
    """Names and defaults of the fields that came after the first release."""
    if kind not in _LATER:
        _LATER[kind] = tuple((field.name, field.default) for field in fields(kind) if field.metadata.get("later"))
    return _LATER[kind]


def in_layers(layers: Iterable[Layer], departures: Callable[[Layer], Iterator[str]]) -> Iterator[str]:
    """The phrases that ``departures`` gives for each layer, prefixed with the layer's number."""
    for i, layer in enumerate(layers):
        yield from (f"layers[{i}].{found}" for found in departures(layer))


def block_departures(layer: Layer, *, free: Collection[str]) -> Iterator[str]:
    """Describes the blocks and fields of a layer that no kind of model builds, except the fields in ``free``."""
    yield from unbuilt(layer, free=free)
    for name, block, built in (("attention", layer.attention, Attention), ("ffn", layer.ffn, FeedForward)):
        if block is not None and not isinstance(block, built):
            yield f"{name} is a {type(block).__name__} block, which is not built"
        elif block is not None:
            yield from (f"{name}.{found}" for found in unbuilt(block, free=free))
    if isinstance(layer.ffn, FeedForward) and layer.ffn.activation == "relu2":
        yield "ffn.activation relu2 is not built"


def encoding_departures(layer: Layer, *, free: Collection[str], where: str, causal: bool = False) -> Iterator[str]:
    """Like :func:`block_departures`, plus features built only with a cache: shared weights, grouped or rotary heads.

    ``where`` is the end of each message ("for images"); ``causal`` is the required value of ``causal``.
    """
    yield from block_departures(layer, free=free)
    if layer.shares is not None:
        yield f"shares is not built {where}"
    if isinstance(layer.attention, Attention):
        found = heads_departures(layer.attention, where=where, causal=causal)
        yield from (f"attention.{each}" for each in found)


def heads_departures(block: Attention, *, where: str, causal: bool = False) -> Iterator[str]:
    """Describes the fields of an attention block that are only built with a cache."""
    if block.causal != causal:
        yield f"causal = {block.causal} is not built {where}"
    if block.kv_heads != block.heads:
        yield f"kv_heads other than heads is not built {where}"
    for name in ("rope", "qk_norm", "window"):
        if getattr(block, name):
            yield f"{name} is not built {where}"
