"""Writes decoders as ``.pte`` files for ExecuTorch with XNNPACK, in that environment: see ``executorch_program.py``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from chipwise.core.arrays import AnyArray
from chipwise.deploy.export.converted import convert
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantize import NEAREST, Packing

PROGRAM = "chipwise.deploy.export.executorch_program"


def export(design: Design, weights: Mapping[str, AnyArray], path: str | Path, *, packing: Packing = NEAREST) -> Path:
    """Writes ``design`` as :func:`convert` does. It takes half a minute or more.

    The cache has ``max_tokens`` positions of one sequence.

    Raises:
        Unsupported: A block or a weight format has no such file.
        Unreachable: The environment is missing; the message says how to make it.
        MeasurementError: ExecuTorch cannot convert the model.
    """
    return convert(design, weights, path, kind="executorch", module=PROGRAM, packing=packing)
