"""Transcribing models: the fifth kind of model that chipwise builds, trains and exports itself (see ``plain``).

Two convolutions over log-mel frames that shorten the sound (Whisper); pre-norm layers of attention over the whole sound
or within stretches of it, perhaps a convolution module (Conformer), and a feed-forward; a matrix over characters at
every position, one of which is CTC's blank.

References:
    Radford et al. 2022 (Whisper), arXiv:2212.04356; Gulati et al. 2020 (Conformer), arXiv:2005.08100.
    Graves et al. 2006, Connectionist Temporal Classification, ICML.
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
from chipwise.model.arch.mixers import Attention, ConvModule
from chipwise.model.kinds.sound.stem import SoundConv, SoundStem

KERNEL, STRIDES = 3, (1, 2)  # of the convolutions over frames
_FREE = {"stem", "classes", "head", "causal", "chunk", "conv", "norm"}  # later fields that transcribing models set


def transcribes(arch: ArchSpec) -> bool:
    """Whether ``arch`` is of this kind: sound with a learned table of positions, which published models lack."""
    return isinstance(arch.stem, SoundStem) and arch.positions == "learned"


def is_transcriber(arch: ArchSpec) -> bool:
    """Whether ``arch`` is a transcribing model that chipwise can build."""
    return isinstance(arch.stem, SoundStem) and next(_departures(arch, arch.stem), None) is None


def require_transcriber(arch: ArchSpec, *, work: str) -> SoundStem:
    """The stem of ``arch``, if it is a transcribing model that chipwise builds.

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


def frame_conv(channels: int, stride: int) -> SoundConv:
    """One of the convolutions over frames that are built: three frames, as many outputs as ``stride`` leaves."""
    return SoundConv(channels=channels, kernel=KERNEL, stride=stride, pad=KERNEL // 2)


def _departures(arch: ArchSpec, stem: SoundStem) -> Iterator[str]:
    yield from unbuilt(arch, free=_FREE)
    if arch.head != "ctc":
        yield f"head = {arch.head!r} is not built for sound"
    if arch.positions != "learned":
        yield f"positions = {arch.positions!r} is not built for sound"
    if arch.max_tokens != stem.tokens:
        yield f"{arch.max_tokens} positions for {stem.tokens} of the stem are not built"
    strides = [conv.stride for conv in stem.convs]
    alike = [frame_conv(arch.d_model, stride) for stride in strides]
    bare = SoundStem(seconds=stem.seconds, rate=stem.rate, channels=stem.channels, convs=stem.convs)
    if stem != bare or list(stem.convs) != alike or len(strides) != 2 or any(each not in STRIDES for each in strides):
        yield "a stem other than two convolutions of three frames to the model's width, of stride 1 or 2, is not built"
    for i, layer in enumerate(arch.layers):
        yield from (f"layers[{i}].{name}" for name in _departed_layer(layer, arch.max_tokens))


def _departed_layer(layer: Layer, positions: int) -> Iterator[str]:
    yield from unbuilt(layer, free=_FREE)
    if layer.shares is not None:
        yield "shares is not built for sound"
    for name, block, built in (("attention", layer.attention, Attention), ("ffn", layer.ffn, FeedForward)):
        if block is not None and not isinstance(block, built):
            yield f"{name} is a {type(block).__name__} block, which is not built"
    if isinstance(layer.attention, Attention):
        yield from (f"attention.{name}" for name in _departed_attention(layer.attention, positions))
    if layer.conv is not None and replace(layer.conv, taps=1) != ConvModule(taps=1, norm="layer"):
        yield "conv without biases or a LayerNorm is not built"
    if layer.conv is not None and layer.conv.taps % 2 == 0:
        yield f"conv.taps = {layer.conv.taps}: as many positions before as after need an odd number"
    if isinstance(layer.ffn, FeedForward) and layer.ffn.activation == "relu2":
        yield "ffn.activation relu2 is not built"


def _departed_attention(block: Attention, positions: int) -> Iterator[str]:
    yield from unbuilt(block, free=_FREE)
    if block.causal:
        yield "causal = True is not built for sound"
    if block.kv_heads != block.heads:
        yield "kv_heads other than heads is not built for sound"
    if block.chunk is not None and positions % block.chunk:
        yield f"chunk = {block.chunk} does not divide {positions} positions"
    for name in ("rope", "qk_norm", "window"):
        if getattr(block, name):
            yield f"{name} is not built for sound"
