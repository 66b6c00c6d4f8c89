"""Convolutions over frames and the head over characters as operators."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.sound.stem import SoundStem
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.op import Op


def lower_frames(arch: ArchSpec, stem: SoundStem, *, weights: str, batch: int) -> Iterator[tuple[str, Op]]:
    """The operators from ``batch`` spectrograms to the residual stream; neighbouring frames are concatenated."""
    d = arch.d_model
    yield "frames", Elementwise(function="transpose", elements=batch * stem.frames * stem.channels)
    lengths, inputs = stem.areas(), stem.conv_inputs()
    for i, (conv, into) in enumerate(zip(stem.convs, inputs, strict=True)):
        padded, rows = batch * (lengths[i] + 2 * conv.pad), batch * lengths[i + 1]
        yield f"frames.{i}.padded", Elementwise(function="pad", elements=padded * into)
        yield f"frames.{i}.seen", EmbeddingOp(tokens=rows * conv.kernel, width=into, rows=padded)
        yield f"frames.{i}", Matmul(m=rows, k=conv.kernel * into, n=conv.channels, weights=weights, bias=True)
        yield f"frames.{i}.activation", Elementwise(function="gelu", elements=rows * conv.channels)
    yield "positions", Elementwise(function="add", elements=batch * stem.tokens * d, inputs=2)
