"""What a published encoder of images makes of one, and which of its layers are computed for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.image.stem import ImageStem

Gives = Literal["states", "vector", "logits", "tokens"]


def gives(arch: ArchSpec) -> Gives:
    """What it makes of an image: states of all positions, one vector, or a decoder's tokens."""
    if arch.projector is not None:
        return "tokens"
    if arch.head == "classes":
        return "logits"
    pooled = arch.head == "pooler" or arch.pooling == "attention" or arch.projection > 0
    return "vector" if pooled else "states"


def given_shape(arch: ArchSpec, stem: ImageStem) -> tuple[int, ...]:
    """The shape of what it makes of one image."""
    kind = gives(arch)
    if kind == "vector":
        return (arch.projection or arch.d_model,)
    if kind == "logits":
        return (arch.classes,)
    if arch.projector is None:
        return stem.tokens, arch.d_model
    return arch.projector.tokens_of(stem.grid, stem.axes), arch.projector.widths[-1]


def as_run(arch: ArchSpec) -> ArchSpec:
    """``arch`` as it is computed: without the last layers that nothing reads, and then without the last norm."""
    if arch.projector is None or not arch.projector.unused_layers:
        return arch
    kept = arch.layers[: len(arch.layers) - arch.projector.unused_layers]
    return replace(arch, layers=kept, final_norm=False, projector=replace(arch.projector, unused_layers=0))


def without_projector(arch: ArchSpec) -> ArchSpec:
    """The tower alone, as it is computed."""
    return replace(as_run(arch), projector=None)
