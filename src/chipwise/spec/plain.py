"""Plain models: those that chipwise builds, trains and exports itself. Others can only be estimated.

A plain model is pre-norm, with grouped-query attention and one feed-forward a layer, and a head over the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from chipwise.core.errors import Unsupported
from chipwise.spec.arch import ArchSpec
from chipwise.spec.feed_forward import FeedForward
from chipwise.spec.mixers import Attention

_BUILT = frozenset({"attention_conv", "ffn_conv"})  # later fields that are built all the same
_LATER: dict[type, tuple[tuple[str, Any], ...]] = {}  # of each class: names and defaults of its later fields


def require_plain(arch: ArchSpec, *, work: str) -> None:
    """Checks that ``arch`` is plain.

    Args:
        arch: The model.
        work: What was requested, for the error message ("exported to ONNX").

    Raises:
        Unsupported: It is not; names the block or field, and where it stands.
    """
    found = next(_departures(arch), None)
    if found is not None:
        raise Unsupported(f"{arch.name} cannot be {work}: {found}; its costs can be estimated all the same")


def is_plain(arch: ArchSpec) -> bool:
    """Whether chipwise can build ``arch`` itself."""
    return next(_departures(arch), None) is None


def _departures(arch: ArchSpec) -> Iterator[str]:
    for name in _departed(arch):
        yield f"{name} is not built"
    for i, layer in enumerate(arch.layers):
        for name in _departed(layer):
            yield f"layers[{i}].{name} is not built"
        for name, block, built in (("attention", layer.attention, Attention), ("ffn", layer.ffn, FeedForward)):
            if block is None:
                continue
            if not isinstance(block, built):
                yield f"layers[{i}].{name} is a {type(block).__name__} block, which is not built"
                continue
            for field in _departed(block):
                yield f"layers[{i}].{name}.{field} is not built"
        if isinstance(layer.ffn, FeedForward) and layer.ffn.activation == "relu2":
            yield f"layers[{i}].ffn.activation relu2 is not built"
        if isinstance(layer.attention, Attention) and layer.attention.rope != (arch.positions == "rope"):
            yield f"layers[{i}].attention without the rotary positions of other layers is not built"


def _departed(value: Any) -> Iterator[str]:
    """Fields that came after the first release and are not at their default: none of them is built but ``_BUILT``."""
    kind = type(value)
    if kind not in _LATER:
        _LATER[kind] = tuple(
            (field.name, field.default)
            for field in fields(value)
            if field.metadata.get("later") and field.name not in _BUILT
        )
    for name, default in _LATER[kind]:
        if getattr(value, name) != default:
            yield f"{name} = {getattr(value, name)!r:.60}"
