"""Convolutions over frames and the head over characters as operators."""

from __future__ import annotations

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.sound.stem import SoundStem
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.op import Op


def lower_frames(arch: ArchSpec, stem: SoundStem, *, weights: str, batch: int) -> list[tuple[str, Op]]:
    """From ``batch`` spectrograms to the residual stream: concatenated neighbouring frames, times a matrix."""
    d = arch.d_model
    ops: list[tuple[str, Op]] = [
        ("frames", Elementwise(function="transpose", elements=batch * stem.frames * stem.channels))
    ]
    lengths, inputs = stem.areas(), stem.conv_inputs()
    for i, (conv, into) in enumerate(zip(stem.convs, inputs, strict=True)):
        padded, rows = batch * (lengths[i] + 2 * conv.pad), batch * lengths[i + 1]
        ops.append((f"frames.{i}.padded", Elementwise(function="pad", elements=padded * into)))
        ops.append((f"frames.{i}.seen", EmbeddingOp(tokens=rows * conv.kernel, width=into, rows=padded)))
        matrix = Matmul(m=rows, k=conv.kernel * into, n=conv.channels, weights=weights, bias=True)
        ops.append((f"frames.{i}", matrix))
        ops.append((f"frames.{i}.activation", Elementwise(function="gelu", elements=rows * conv.channels)))
    ops.append(("positions", Elementwise(function="add", elements=batch * stem.tokens * d, inputs=2)))
    return ops
