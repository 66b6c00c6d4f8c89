"""Modulation as operators."""

from __future__ import annotations

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.denoiser.denoiser import Denoiser
from chipwise.model.kinds.denoiser.parts import modulation_widths
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.op import Op

Named = list[tuple[str, Op]]


def lower_told(arch: ArchSpec, denoiser: Denoiser, *, weights: str, batch: int) -> Named:
    """Operators that turn times and labels into shifts, scales and gates: sinusoids, two matrices, sum, one matrix."""
    d, values = arch.d_model, batch * denoiser.frequencies
    width = sum(modulation_widths(arch).values())
    return [
        ("time.scaled", Elementwise(function="mul", elements=values)),
        ("time.shifted", Elementwise(function="add", elements=values)),
        ("time.waves", Elementwise(function="sin", elements=values)),
        ("time.up", Matmul(m=batch, k=denoiser.frequencies, n=d, bias=True)),
        ("time.activation", Elementwise(function="silu", elements=batch * d)),
        ("time.down", Matmul(m=batch, k=d, n=d, bias=True)),
        ("label", EmbeddingOp(tokens=batch, width=d, rows=denoiser.rows)),
        ("with_time", Elementwise(function="add", elements=batch * d)),
        ("activation", Elementwise(function="silu", elements=batch * d)),
        ("modulation", Matmul(m=batch, k=d, n=width, weights=weights, bias=True)),
        ("parts", Elementwise(function="split", elements=batch * width)),
    ]


def lower_modulated(arch: ArchSpec, *, rows: int, skip: bool) -> Named:
    """Operators of a norm without weights, and of the scale and shift after it."""
    values = rows * arch.d_model
    return [
        ("norm", NormOp(rows=rows, width=arch.d_model, norm="layernorm", skip=skip)),
        ("scaled", Elementwise(function="mul", elements=values)),
        ("shifted", Elementwise(function="add", elements=values)),
    ]


def lower_gate(arch: ArchSpec, *, rows: int) -> tuple[str, Op]:
    """The operator that multiplies a block's result by its gate."""
    return "gated", Elementwise(function="mul", elements=rows * arch.d_model)


def lower_pixels(arch: ArchSpec, stem: ImageStem, denoiser: Denoiser, *, weights: str, batch: int) -> Named:
    """Operators of the output matrix, and of the rearrangement of its results to an image."""
    rows, values = batch * stem.tokens, denoiser.values(stem)
    return [
        ("pixels", Matmul(m=rows, k=arch.d_model, n=values, weights=weights, bias=True)),
        ("image", Elementwise(function="transpose", elements=rows * values)),
    ]
