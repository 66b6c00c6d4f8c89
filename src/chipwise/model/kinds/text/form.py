"""Plain models: those that chipwise builds, trains and exports itself. Others can only be estimated.

A plain model is pre-norm, with grouped-query attention and one feed-forward a layer, and a head over the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.departures import unbuilt
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.mixers import Attention

_BUILT = frozenset({"attention_conv", "ffn_conv"})  # later fields that are built all the same


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
        raise Unsupported(f"{arch.name} cannot be {work}: {found}; chipwise estimate prices it all the same")


def is_plain(arch: ArchSpec) -> bool:
    """Whether chipwise can build ``arch`` itself."""
    return next(_departures(arch), None) is None


def _departures(arch: ArchSpec) -> Iterator[str]:
    yield from unbuilt(arch, free=_BUILT)
    for i, layer in enumerate(arch.layers):
        for name in unbuilt(layer, free=_BUILT):
            yield f"layers[{i}].{name}"
        for name, block, built in (("attention", layer.attention, Attention), ("ffn", layer.ffn, FeedForward)):
            if block is None:
                continue
            if not isinstance(block, built):
                yield f"layers[{i}].{name} is a {type(block).__name__} block, which is not built"
                continue
            for field in unbuilt(block, free=_BUILT):
                yield f"layers[{i}].{name}.{field}"
        if isinstance(layer.ffn, FeedForward) and layer.ffn.activation == "relu2":
            yield f"layers[{i}].ffn.activation relu2 is not built"
        if isinstance(layer.attention, Attention) and layer.attention.rope != (arch.positions == "rope"):
            yield f"layers[{i}].attention without the rotary positions of other layers is not built"
