"""Operators of one denoiser pass: those outside the layers, and the modulated norms and gates inside the layers.

An image takes ``ArchSpec.passes`` passes. The cost of decoding latents after the last pass is spread evenly
over all passes.
"""

from __future__ import annotations

from chipwise.model.blocks.lowering import Operators, Pass
from chipwise.model.kinds.denoiser.latents.lower import lower_decoder
from chipwise.model.kinds.denoiser.modulation.lower import lower_gate, lower_modulated, lower_pixels, lower_told
from chipwise.model.kinds.denoiser.parts import parts_of
from chipwise.model.kinds.image.patches.lower import lower_patches


def _stem(at: Pass) -> None:
    stem, denoiser = parts_of(at.arch)
    at.tokens = stem.tokens
    at.put("told", lower_told(at.arch, denoiser, weights=at.head, batch=at.batch))
    at.put("stem", lower_patches(at.arch, stem, weights=at.head, batch=at.batch))


def _head(at: Pass) -> None:
    stem, denoiser = parts_of(at.arch)
    at.put("end", lower_modulated(at.arch, rows=at.rows, skip=at.skip))
    at.put("head", lower_pixels(at.arch, stem, denoiser, weights=at.head, batch=at.batch))
    if denoiser.latents is not None:
        at.put("decoder", lower_decoder(denoiser.latents, stem, batch=at.batch, passes=denoiser.passes))


OPERATORS = Operators(
    stem=_stem,
    head=_head,
    norm=lambda at: lower_modulated(at.arch, rows=at.rows, skip=at.skip),
    gate=lambda at: [lower_gate(at.arch, rows=at.rows)],
)
