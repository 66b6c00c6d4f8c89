"""Writes decoders as packages for Core ML, in that environment: see ``coreml_program.py``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from chipwise.core.arrays import AnyArray
from chipwise.deploy.export.converted import convert
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantize import NEAREST, Packing

PACKAGE = "model.mlpackage"  # a folder
PROGRAM = "chipwise.deploy.export.coreml_program"
UNVERIFIED = (
    "in Core ML, which runs on macOS and iOS alone: coremltools converted and read the package, no output was compared"
)


def export(design: Design, weights: Mapping[str, AnyArray], path: str | Path, *, packing: Packing = NEAREST) -> Path:
    """Writes ``design`` as :func:`convert` does, for iOS 18 and macOS 15. It takes ten seconds or more.

    The cache is the package's state: ``max_tokens`` positions of one sequence in FP16.

    Raises:
        Unsupported: A block or a weight format has no such file.
        Unreachable: The environment is missing; the message says how to make it.
        MeasurementError: coremltools cannot convert the model.
    """
    return convert(design, weights, path, kind="coreml", module=PROGRAM, packing=packing)


def files(folder: Path) -> list[str]:
    """The files of the package in ``folder``, by their paths there."""
    return sorted(path.relative_to(folder).as_posix() for path in (folder / PACKAGE).rglob("*") if path.is_file())
