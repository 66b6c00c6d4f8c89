"""What of a model is not built, in words: the later fields that a kind of model may not set."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import fields
from typing import Any

_WORDS = {  # of fields whose values are too long for one line
    "denoiser": "a denoiser",
    "encoder": "an encoder beside the decoder",
    "encoder_stem": "an encoder that hears",
    "projector": "a projector behind it",
    "question": "a question behind the image",
    "stages": "stages before the layers",
    "stem": "a stem for images, sound or items",
    "towers": "a tower that sees or hears",
}

_MEANS = {  # of fields whose names say little
    "bias_network": "a network that makes position biases",
    "cosine": "cosines in place of products",
    "key_bias": "queries with biases, and keys without",
    "patch_rope": "patches turned by row and column",
    "scale": "a learned factor of each block's result",
}
_LATER: dict[type, tuple[tuple[str, Any], ...]] = {}  # of each class: names and defaults of its later fields


def unbuilt(value: Any, *, free: Collection[str] = ()) -> Iterator[str]:
    """Half a sentence for each later field of ``value`` that is not at its default and not among ``free``.

    >>> from chipwise.model.published.read import resolve
    >>> next(unbuilt(resolve("smolvlm-256m")))
    'a tower that sees or hears is not built'
    """
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
