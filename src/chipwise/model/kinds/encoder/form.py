"""BERT-style encoders: the second kind of model that chipwise builds, trains and exports itself (see ``plain``).

Norms stand after each sum, positions are learned, every position sees all others; the head is a pooler or none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.departures import unbuilt
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.mixers import Attention

_FREE = {
    "norm_place",
    "embedding_norm",
    "head",
    "token_types",
    "final_norm",
    "causal",
}  # later fields encoders set


def is_encoder(arch: ArchSpec) -> bool:
    """Whether ``arch`` is an encoder that chipwise can build."""
    return _encodes(arch) and next(_departures(arch), None) is None


def require_encoder(arch: ArchSpec, *, work: str) -> None:
    """Checks that ``arch`` is an encoder that chipwise builds.

    Raises:
        Unsupported: It is not; names the block or field, and where it stands.
    """
    found = next(_departures(arch), None) if _encodes(arch) else "it is not an encoder with norms after its blocks"
    if found is not None:
        raise Unsupported(f"{arch.name} cannot be {work}: {found}; chipwise estimate prices it all the same")


def without_head(arch: ArchSpec) -> ArchSpec:
    """``arch`` without its pooler, which embeddings by the mean of the positions do not need."""
    return replace(arch, head="none")


def _encodes(arch: ArchSpec) -> bool:
    return arch.norm_place == "post" and arch.head in ("pooler", "none")


def _departures(arch: ArchSpec) -> Iterator[str]:
    yield from unbuilt(arch, free=_FREE)
    if arch.final_norm:
        yield "final_norm = True is not built after norms that follow the blocks"
    if arch.positions != "learned":
        yield f"positions = {arch.positions!r} is not built in encoders"
    for i, layer in enumerate(arch.layers):
        for name in unbuilt(layer, free=_FREE):
            yield f"layers[{i}].{name}"
        if layer.shares is not None:
            yield f"layers[{i}].shares is not built in encoders"
        for name, block, built in (("attention", layer.attention, Attention), ("ffn", layer.ffn, FeedForward)):
            if block is not None and not isinstance(block, built):
                yield f"layers[{i}].{name} is a {type(block).__name__} block, which is not built"
        if isinstance(layer.attention, Attention):
            yield from (f"layers[{i}].attention.{name}" for name in _departed_attention(layer.attention))
        if isinstance(layer.ffn, FeedForward):
            yield from (f"layers[{i}].ffn.{name}" for name in unbuilt(layer.ffn, free=_FREE))
            if layer.ffn.activation == "relu2":
                yield f"layers[{i}].ffn.activation relu2 is not built"


def _departed_attention(block: Attention) -> Iterator[str]:
    yield from unbuilt(block, free=_FREE)
    if block.causal:
        yield "causal = True is not built in encoders"
    if block.kv_heads != block.heads:
        yield "kv_heads other than heads is not built in encoders"
    for name in ("rope", "qk_norm", "window"):
        if getattr(block, name):
            yield f"{name} is not built in encoders"
