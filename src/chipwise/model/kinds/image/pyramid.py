"""Stages of a pyramid as separate models, so that their layers are handled like all others."""

from __future__ import annotations

from dataclasses import replace

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.layer import Layer
from chipwise.model.kinds.image.stem import ImageStem


def stage_archs(arch: ArchSpec, stem: ImageStem) -> list[ArchSpec]:
    """Each stage as a model that contains only its layers; its patches are the positions of the stage's grid."""
    found = []
    for i, stage in enumerate(stem.stages):
        inner = ImageStem(image_size=stem.first_grid >> i, patch=1, prefix_tokens=0)
        layers = (Layer(attention=stage.attention, ffn=stage.ffn),) * stage.depth
        found.append(replace(arch, d_model=stage.d_model, layers=layers, stem=inner, max_tokens=inner.tokens))
    return found
