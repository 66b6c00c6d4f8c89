"""Published audio encoders: wav2vec 2.0, HuBERT and Whisper's encoder. chipwise predicts only their costs.

They begin with convolutions over samples or log-mel frames, after which there may be a matrix. Positions come from a
wide convolution or a table. The layers' attention covers the whole sound, and norms are before or after the blocks. The
head may be a matrix over characters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.departures import encoding_departures, in_layers, unbuilt
from chipwise.model.arch.ends import States
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.form import Form
from chipwise.model.kinds.sound import lower
from chipwise.model.kinds.sound.form import UNTRAINED, not_cut, sketch
from chipwise.model.kinds.sound.stem import Ctc, SoundStem

_FREE = {"stem", "classes", "head", "causal", "norm_place", "embedding_norm", "final_norm", "pooling", "key_bias"}


def encoder_of(arch: ArchSpec) -> ArchSpec:
    """The encoder of a speech-to-text encoder-decoder, as a separate model; other models are returned unchanged."""
    if not arch.encoder_tokens:
        return arch
    return replace(
        arch.encoding(),
        layers=arch.encoder,
        encoder=(),
        encoder_d_model=0,
        encoder_stem=None,
        positions="rope" if any(getattr(layer.attention, "rope", False) for layer in arch.encoder) else "none",
    )


def encoder_alone(arch: ArchSpec) -> ArchSpec:
    """Like :func:`encoder_of`, but the encoder gets a name of its own, such as ``encoder of whisper-tiny``."""
    found = encoder_of(arch)
    return arch if found is arch else replace(found, name=f"encoder of {arch.name}")


def _departures(arch: ArchSpec) -> Iterator[str]:
    stem = arch.stem_as(SoundStem)
    yield from unbuilt(arch, free=_FREE)
    if not isinstance(arch.head, Ctc | States):
        yield f"head = {arch.head.name!r} is not supported for sound"
    if arch.positions != "none":
        yield f"positions = {arch.positions!r} is not supported for sound"
    if arch.norm != "layernorm" or not arch.norm_bias or arch.norm_place == "both":
        yield "sound models must have LayerNorms with biases, before or after the blocks"
    if arch.norm_place == "post" and arch.final_norm:
        yield "final_norm = True is not supported in sound models with norms after the blocks"
    if stem.axes != 1 or stem.prefix_tokens:
        yield "a stem over frames and bands, or with prefix tokens, is not supported"
    if any(conv.activation != "gelu" or conv.groups != 1 for conv in stem.convs):
        yield "convolutions of the stem with groups, or with activations other than GELU, are not supported"
    if not stem.matrix and (stem.matrix_norm or stem.convs[-1].channels != arch.d_model):
        yield "a stem without a matrix is only supported if its last convolution is as wide as the model"
    yield from in_layers(arch.layers, _layer_departures)


def _layer_departures(layer: Layer) -> Iterator[str]:
    if not isinstance(layer.attention, Attention) or not isinstance(layer.ffn, FeedForward):
        kinds = " and ".join(type(each).__name__ for each in (layer.attention, layer.ffn))
        yield f"a layer with {kinds} is not supported; it needs an Attention and a FeedForward block"
    yield from encoding_departures(layer, free=_FREE, where="for sound")


LISTENER = Form(
    name="listener",
    stem=SoundStem,
    other="it does not take audio",
    departures=_departures,
    does=lambda arch: "transcribes sound",
    operators=lower.PUBLISHED,
    sketch=sketch,
    check_cut=not_cut,
    untrained=UNTRAINED,
)
