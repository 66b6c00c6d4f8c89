"""Bits per byte of held-out text by an exported graph, for the benchmarks that compare formats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantize import NEAREST, Packing
from chipwise.training.data.dataset import Split
from chipwise.training.data.tokens import TokenData
from chipwise.training.tasks.exported_text import exported_bits


def exported_bits_per_byte(
    design: Design,
    weights: Mapping[str, Any],
    data: TokenData,
    path: Path,
    *,
    split: Split = "validation",
    max_bytes: int | None = None,
    packing: Packing = NEAREST,
) -> float:
    """Bits per byte of ``split`` by the exported graph; ``path`` holds it meanwhile.

    The windows are those of :func:`chipwise.training.loop.evaluate.evaluate`.
    """
    stream, size_bytes = data.held_out(split, max_bytes=max_bytes)
    return float(exported_bits(design, weights, stream, path, packing=packing).sum()) / size_bytes
