"""Weights of speech recognisers and pretrained audio encoders outside their layers."""

from __future__ import annotations

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.weights import Shapes, linear, norm
from chipwise.model.kinds.sound.stem import Ctc, SoundStem


def frames(arch: ArchSpec) -> Shapes:
    """The matrices over frames, and the table of positions."""
    stem = arch.stem_as(SoundStem)
    for i, (into, out) in enumerate(stem.matrices(arch.d_model)):
        yield from linear(f"stem.frames.{i}", out, into, bias=True)
    yield "positions.weight", (arch.max_tokens, arch.d_model)


def sound(arch: ArchSpec) -> Shapes:
    """The convolutions, matrix and positions of a published model."""
    d = arch.d_model
    stem = arch.stem_as(SoundStem)
    for i, (conv, into) in enumerate(zip(stem.convs, stem.conv_inputs(), strict=True)):
        yield f"stem.convs.{i}.weight", (conv.channels, into, conv.kernel)
        if conv.bias:
            yield f"stem.convs.{i}.bias", (conv.channels,)
        if conv.norm != "none":
            yield f"stem.convs.{i}.norm.weight", (conv.channels,)
            yield f"stem.convs.{i}.norm.bias", (conv.channels,)
    if stem.matrix_norm:
        yield "stem.norm.weight", (stem.values,)
        yield "stem.norm.bias", (stem.values,)
    if stem.matrix:
        yield from linear("stem.projection", d, stem.values, bias=True)
    if stem.position_taps:
        yield "stem.places.weight_g", (1, 1, stem.position_taps)
        yield "stem.places.weight_v", (d, d // stem.position_groups, stem.position_taps)
        yield "stem.places.bias", (d,)
    if stem.position_rows:
        yield "stem.positions.weight", (stem.position_rows, d)
    if stem.mask_token:
        yield "stem.mask.weight", (d,)
    if arch.embedding_norm:
        yield from norm(arch, "embedding_norm")


def characters(arch: ArchSpec) -> Shapes:
    """The last norm and the matrix over characters, if there are any."""
    if arch.final_norm:
        yield from norm(arch, "norm")
    if isinstance(arch.head, Ctc):
        yield from linear("head", arch.outputs, arch.d_model, bias=True)
