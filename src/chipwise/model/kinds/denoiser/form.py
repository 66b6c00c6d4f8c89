"""Denoisers that chipwise builds, trains and exports itself: DiT on patches of an image.

Such a model has image patches, learned positions, pre-norm layers whose norms have no weights but are modulated, and an
output matrix to pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.departures import unbuilt
from chipwise.model.kinds.denoiser import lower, weights
from chipwise.model.kinds.denoiser.denoiser import UNSHIFTED, Denoiser
from chipwise.model.kinds.denoiser.modulation.slicing import slice_modulation
from chipwise.model.kinds.denoiser.parts import modulation_widths, parts_of
from chipwise.model.kinds.form import Axes, Form, Modelling, Sketch, random_signals
from chipwise.model.kinds.image.form import FREE, layer_departures, same_patches, seen_words

_FREE = ("denoiser", "norm_weight")  # ``later`` fields that denoisers set


def _departures(arch: ArchSpec) -> Iterator[str]:
    stem, denoiser = parts_of(arch)
    yield from unbuilt(arch, free=(*FREE, *_FREE))
    if arch.norm != "layernorm" or arch.norm_weight or arch.norm_bias:
        yield "norms with weights, and norms other than LayerNorm, are not supported for denoisers"
    if arch.positions != "learned":
        yield f"positions = {arch.positions!r} is not supported for images"
    if denoiser.outputs != 1:
        yield "a denoiser that also outputs a variance is not supported"
    if stem.image_size % stem.patch or stem.mask_token or arch.max_tokens != stem.tokens:
        yield "mask tokens, and patches that do not divide the image, are not supported for denoisers"
    yield from layer_departures(arch)


def _sketch(arch: ArchSpec) -> Sketch:
    stem, denoiser = parts_of(arch)
    guided = f" guided {denoiser.guidance:g}" if denoiser.guided else ""
    latents = f" latents {denoiser.latents.factor}" if denoiser.latents else ""
    solver = " multistep" if denoiser.solver == "multistep" else ""
    solver += f" shift {denoiser.shift:g}" if denoiser.shift != UNSHIFTED else ""
    first = f"{denoiser.steps} steps{solver}{guided}{latents} p{stem.patch}"
    return Sketch(first=first, attention=seen_words(arch))


def _axes(sub: ArchSpec, whole: ArchSpec, sources: Mapping[str, str]) -> Axes:
    found: Axes = {}
    for name in modulation_widths(sub):
        found |= slice_modulation(sub, whole, name=name, source=sources[f"{name}.weight"].rpartition(".")[0])
    return found


def _inputs(arch: ArchSpec, generator: np.random.Generator, batch: int) -> tuple[AnyArray, ...]:
    """A batch of random images, times and labels."""
    times = generator.random(batch, np.float32)
    labels = np.arange(batch) % arch.head_as(Denoiser).labels
    return (*random_signals(arch, generator, batch), times, labels)


DENOISER = Form(
    name="denoiser",
    head=Denoiser,
    other="it does not denoise images",
    departures=_departures,
    does=lambda arch: "generates images",
    weights=(weights.stem, weights.head),
    package="denoiser",
    modelling=lambda arch: Modelling("modeling_chipwise_denoiser.py", "AutoModel", "ChipwiseDenoiser"),
    inputs=_inputs,
    outputs="velocities",
    operators=lower.OPERATORS,
    task=lambda arch: "diffusion",
    sketch=_sketch,
    check_cut=same_patches,
    cut_axes=_axes,
)
