"""CTC speech recognisers that chipwise builds, trains and exports itself.

Such a model has two convolutions over log-mel frames that shorten the sound (Whisper); pre-norm layers with global or
chunked attention, optionally a convolution module (Conformer), and a feed-forward; and a matrix over characters at
every position. The characters include CTC's blank.

References:
    Radford et al. 2022 (Whisper), arXiv:2212.04356; Gulati et al. 2020 (Conformer), arXiv:2005.08100.
    Graves et al. 2006, Connectionist Temporal Classification, ICML.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.departures import encoding_departures, in_layers, unbuilt
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention, ConvModule
from chipwise.model.kinds.form import Form, Modelling, Sketch
from chipwise.model.kinds.sound import lower, weights
from chipwise.model.kinds.sound.stem import Ctc, SoundConv, SoundStem

GLOBAL = "global"  # attention over the whole sound
UNTRAINED = "chipwise only predicts the cost of published audio models"
KERNEL, STRIDES = 3, (1, 2)  # kernel size and strides of the convolutions over frames
_FREE = {"stem", "classes", "head", "causal", "chunk", "conv", "norm"}  # ``later`` fields that speech recognisers set


def frame_conv(channels: int, stride: int) -> SoundConv:
    """The convolution over frames in models that chipwise builds: kernel size 3, padded, with stride ``stride``."""
    return SoundConv(channels=channels, kernel=KERNEL, stride=stride, pad=KERNEL // 2)


def _departures(arch: ArchSpec) -> Iterator[str]:
    stem = arch.stem_as(SoundStem)
    yield from unbuilt(arch, free=_FREE)
    if not isinstance(arch.head, Ctc):
        yield f"head = {arch.head.name!r} is not supported for sound"
    if arch.max_tokens != stem.tokens:
        yield f"{arch.max_tokens} positions are not supported for a stem that outputs {stem.tokens}"
    strides = [conv.stride for conv in stem.convs]
    alike = [frame_conv(arch.d_model, stride) for stride in strides]
    bare = SoundStem(seconds=stem.seconds, rate=stem.rate, channels=stem.channels, convs=stem.convs)
    if stem != bare or list(stem.convs) != alike or len(strides) != 2 or any(each not in STRIDES for each in strides):
        yield "only a stem of two convolutions to the model's width, with kernel 3 and stride 1 or 2, is supported"
    yield from in_layers(arch.layers, lambda layer: _layer_departures(layer, arch.max_tokens))


def _layer_departures(layer: Layer, positions: int) -> Iterator[str]:
    yield from encoding_departures(layer, free=_FREE, where="for sound")
    block = layer.attention
    if isinstance(block, Attention) and block.chunk is not None and positions % block.chunk:
        yield f"attention.chunk = {block.chunk} does not divide {positions} positions"
    if layer.conv is not None and replace(layer.conv, taps=1) != ConvModule(taps=1, norm="layer"):
        yield "conv is only supported with biases and with a LayerNorm"
    if layer.conv is not None and layer.conv.taps % 2 == 0:
        yield f"conv.taps = {layer.conv.taps} must be odd, so that the filter is centred"


def sketch(arch: ArchSpec) -> Sketch:
    """The words in a design's summary that describe its stride, attention and convolution module."""
    first = arch.layers[0]
    seen = GLOBAL if first.attention is None or first.attention.chunk is None else f"local{first.attention.chunk}"
    module = f" conv{first.conv.taps}" if first.conv is not None else ""
    stem = arch.stem_as(SoundStem)
    return Sketch(first=f"s{round(stem.frames / stem.tokens)} {seen}{module}")


def not_cut(sub: ArchSpec, whole: ArchSpec) -> None:
    """Raises an error: audio models cannot be cut from a larger one.

    Raises:
        SpecError: Always.
    """
    raise SpecError("speech recognisers cannot be cut from larger ones", field="stem")


TRANSCRIBER = Form(
    name="transcriber",
    stem=SoundStem,
    only=lambda arch: arch.positions == "learned",  # pretrained audio encoders have no learned positions
    other="it does not take audio, or has no learned positions",
    departures=_departures,
    does=lambda arch: "transcribes sound",
    weights=(weights.frames, weights.characters),
    package="sound",
    modelling=lambda arch: Modelling("modeling_chipwise_sound.py", "AutoModelForCTC", "ChipwiseForCTC"),
    operators=lower.OPERATORS,
    task=lambda arch: "transcripts",
    sketch=sketch,
    check_cut=not_cut,
    untrained=UNTRAINED,
)
