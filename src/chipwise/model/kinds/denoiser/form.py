"""Denoisers that chipwise builds, trains and exports itself: DiT on patches of an image.

Patches, positions that are learned, pre-norm layers whose norms have no weights and are modulated instead, and a matrix
back to pixels.
"""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.departures import unbuilt
from chipwise.model.kinds.denoiser import lower, weights
from chipwise.model.kinds.form import Form, Modelling
from chipwise.model.kinds.image.form import FREE, layer_departures
from chipwise.model.kinds.image.stem import ImageStem

_FREE = ("denoiser", "norm_weight")  # later fields that denoisers set


def _departures(arch: ArchSpec) -> Iterator[str]:
    stem, denoiser = arch.stem, arch.denoiser
    if denoiser is None or not isinstance(stem, ImageStem):
        yield "it does not denoise images"
        return
    yield from unbuilt(arch, free=(*FREE, *_FREE))
    if arch.norm != "layernorm" or arch.norm_weight or arch.norm_bias:
        yield "a norm with weights, or one that is no LayerNorm, is not built for denoisers"
    if arch.positions != "learned":
        yield f"positions = {arch.positions!r} is not built for images"
    if denoiser.outputs != 1:
        yield "a denoiser that gives a variance too is not built"
    if stem.image_size % stem.patch or stem.mask_token or arch.max_tokens != stem.tokens:
        yield "patches that do not divide the image, or a mask token, are not built for denoisers"
    yield from layer_departures(arch)


DENOISER = Form(
    name="denoiser",
    matches=lambda arch: arch.denoiser is not None,
    departures=_departures,
    does=lambda arch: "draws images",
    weights=(weights.stem, weights.head),
    graph="denoiser.graph",
    module="denoiser.module",
    modelling=lambda arch: Modelling("modeling_chipwise_denoiser.py", "AutoModel", "ChipwiseDenoiser"),
    outputs="velocities",
    operators=lower.OPERATORS,
    task=lambda arch: "diffusion",
)
