"""Published models that hear, which chipwise exports with their weights but does not train: wav2vec 2.0, HuBERT, and
Whisper's encoder.

Convolutions over samples or log-mel frames, perhaps a matrix; positions by a wide convolution or a table; layers of
attention over the whole sound, with norms before or after their blocks; a matrix over characters, or none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.departures import unbuilt
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.sound.stem import SoundStem

_FREE = {"stem", "classes", "head", "causal", "norm_place", "embedding_norm", "final_norm", "pooling", "key_bias"}


def encoder_of(arch: ArchSpec) -> ArchSpec:
    """The encoder of a model that hears and writes, as a model of its own; any other model as it is."""
    if arch.encoder_stem is None:
        return arch
    return replace(
        arch,
        d_model=arch.encoder_width,
        vocab_size=0,
        layers=arch.encoder,
        encoder=(),
        encoder_d_model=0,
        stem=arch.encoder_stem,
        encoder_stem=None,
        positions="rope" if any(getattr(layer.attention, "rope", False) for layer in arch.encoder) else "none",
        head="none",
    )


def encoder_alone(arch: ArchSpec) -> ArchSpec:
    """As :func:`encoder_of`, with a name that says so: ``encoder of whisper-tiny``."""
    return arch if arch.encoder_stem is None else replace(encoder_of(arch), name=f"encoder of {arch.name}")


def require_listener(arch: ArchSpec, *, work: str) -> SoundStem:
    """The stem of ``arch``, if it is a model that hears and that chipwise exports.

    Raises:
        Unsupported: It is not; names the block or field, and where it stands.
    """
    stem: Any = arch.stem
    if not isinstance(stem, SoundStem):
        raise Unsupported(f"{arch.name} cannot be {work}: it does not hear")
    found = next(_departures(arch, stem), None)
    if found is not None:
        raise Unsupported(f"{arch.name} cannot be {work}: {found}; chipwise estimate prices it all the same")
    return stem


def _departures(arch: ArchSpec, stem: SoundStem) -> Iterator[str]:
    yield from unbuilt(arch, free=_FREE)
    if arch.head not in ("ctc", "none"):
        yield f"head = {arch.head!r} is not built for sound"
    if arch.positions != "none":
        yield f"positions = {arch.positions!r} is not built for sound"
    if arch.norm != "layernorm" or not arch.norm_bias or arch.norm_place == "both":
        yield "norms other than LayerNorms with biases, before or after blocks, are not built for sound"
    if arch.norm_place == "post" and arch.final_norm:
        yield "a norm after the last layer's norm is not built"
    if stem.axes != 1 or stem.prefix_tokens:
        yield "a stem over frames and bands, or one with positions before the sound, is not built"
    if any(conv.activation != "gelu" or conv.groups != 1 for conv in stem.convs):
        yield "convolutions of the stem with groups, or with another activation than GELU, are not built"
    if not stem.matrix and (stem.matrix_norm or stem.convs[-1].channels != arch.d_model):
        yield "a stem whose last convolution is not as wide as the model, without a matrix behind it, is not built"
    for i, layer in enumerate(arch.layers):
        yield from (f"layers[{i}].{name}" for name in _departed_layer(layer))


def _departed_layer(layer: Layer) -> Iterator[str]:
    yield from unbuilt(layer, free=_FREE)
    if layer.shares is not None:
        yield "shares is not built for sound"
    block, ffn = layer.attention, layer.ffn
    if not isinstance(block, Attention) or not isinstance(ffn, FeedForward):
        kinds = " and ".join(type(each).__name__ for each in (block, ffn))
        yield f"a layer of {kinds} is not built: it takes an Attention and a FeedForward block"
        return
    yield from (f"attention.{name}" for name in unbuilt(block, free=_FREE))
    yield from (f"ffn.{name}" for name in unbuilt(ffn, free=_FREE))
    if block.causal or block.kv_heads != block.heads or block.rope or block.qk_norm or block.window:
        yield "attention that is causal, grouped, rotary, normed or windowed is not built for sound"
    if ffn.activation == "relu2":
        yield "ffn.activation relu2 is not built"
