"""Names and shapes of a denoiser's weights outside its layers."""

from __future__ import annotations

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.weights import Shapes, linear
from chipwise.model.kinds.denoiser.latents.spec import KERNEL
from chipwise.model.kinds.denoiser.parts import modulation_widths, parts_of


def stem(arch: ArchSpec) -> Shapes:
    """Weights of the patch matrix, positions, label table and time embedding."""
    patches, denoiser = parts_of(arch)
    yield from linear("stem.projection", arch.d_model, patches.values, bias=patches.bias)
    yield "positions.weight", (patches.tokens, arch.d_model)
    yield "labels.weight", (denoiser.rows, arch.d_model)
    yield from linear("told.time.up", arch.d_model, denoiser.frequencies, bias=True)
    yield from linear("told.time.down", arch.d_model, arch.d_model, bias=True)


def head(arch: ArchSpec) -> Shapes:
    """Weights of the modulation matrices, the output matrix and the latent decoder."""
    patches, denoiser = parts_of(arch)
    for name, width in modulation_widths(arch).items():
        yield from linear(name, width, arch.d_model, bias=True)
    yield from linear("head", denoiser.values(patches), arch.d_model, bias=True)
    if denoiser.latents is not None:
        for i, (into, out) in enumerate(denoiser.latents.shapes(patches.channels)):
            yield f"decoder.convs.{i}.weight", (out, into, KERNEL, KERNEL)
            yield f"decoder.convs.{i}.bias", (out,)
