"""Writes decoders as ``.tflite`` files for LiteRT with XNNPACK, in that environment: see ``litert_program.py``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from chipwise.core import units
from chipwise.core.arrays import AnyArray
from chipwise.deploy.export.converted import convert
from chipwise.errors import Unsupported
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantize import NEAREST, Packing

PROGRAM = "chipwise.deploy.export.litert_program"
LARGEST = 2**31 - 2**20  # bytes that a flatbuffer addresses, less its own tables


def export(design: Design, weights: Mapping[str, AnyArray], path: str | Path, *, packing: Packing = NEAREST) -> Path:
    """Writes ``design`` as :func:`convert` does. It takes ten seconds or more.

    The cache is among the inputs and outputs, for one sequence.

    Raises:
        Unsupported: A block or a weight format has no such file, or it is too large.
        Unreachable: The environment is missing; the message says how to make it.
        MeasurementError: LiteRT cannot convert the model.
    """
    if (wide := 4 * design.arch.parameters()) > LARGEST:
        raise Unsupported(
            f"{design.arch.name}: {units.show(wide, 'bytes')} in FP32, and the converter for LiteRT takes 2 GiB at most"
        )
    return convert(design, weights, path, kind="litert", module=PROGRAM, packing=packing)
