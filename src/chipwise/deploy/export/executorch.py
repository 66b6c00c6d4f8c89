"""Writes decoders as ``.pte`` files for ExecuTorch with XNNPACK, in that environment: see ``executorch_program.py``."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from chipwise.core.arrays import AnyArray
from chipwise.core.environments import program
from chipwise.core.files import storage
from chipwise.deploy.export.exporters import EXPORTERS
from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.formats import matrix_of
from chipwise.model.walk.weights import weight_shapes

FORMATS = ("fp32", "int8", "int4")
PROGRAM = "chipwise.deploy.export.executorch_program"
GROUP = 32  # values along k that share an int4 scale


def check_blocks(arch: ArchSpec) -> None:
    """Checks that a file can hold every block.

    Raises:
        Unsupported: It is no decoder, or a layer has a convolution or attends within a window.
    """
    if not (arch.causal and arch.head.writes):
        raise Unsupported(f"{arch.name}: only decoders that write text are exported to ExecuTorch")
    for number, layer in enumerate(arch.layers):
        if layer.convs:
            raise Unsupported(f"{arch.name}: layer {number} has a convolution, which files for ExecuTorch lack")
        window = layer.attention.window if layer.attention is not None else None
        if window is not None and window < arch.max_tokens:
            raise Unsupported(
                f"{arch.name}: layer {number} attends within a window, which ExecuTorch's cached attention lacks"
            )


def export(design: Design, weights: Mapping[str, AnyArray], path: str | Path) -> Path:
    """Writes ``design`` with ``weights`` (named as the torch module's state dict). It takes half a minute or more.

    The cache has ``max_tokens`` positions of one sequence. Narrow weights are rounded to the nearest integers: int8
    with a scale for each row, int4 in groups of 32; activations to int8 as they come, one scale for each position.

    Raises:
        Unsupported: A block or a weight format has no such file.
        Unreachable: The environment is missing; the message says how to make it.
        MeasurementError: ExecuTorch cannot convert the model.
    """
    arch, formats = design.arch, dict[str, str]()
    check_blocks(arch)
    if lacks := set(design.formats.all) - set(FORMATS):
        raise Unsupported(f"ExecuTorch files are written in {', '.join(FORMATS)}, not {min(lacks)}")
    shapes = weight_shapes(arch)
    for name, shape in {"head.weight": shapes["embedding.weight"], **shapes}.items():
        if (matrix := matrix_of(name)) is not None:
            formats[name] = design.formats.of(matrix)
            if formats[name] == "int4" and shape[1] % GROUP:
                raise Unsupported(f"{name}: int4 for ExecuTorch needs rows of a multiple of {GROUP}, not {shape[1]}")
    facts = {
        "design": design.digest,
        "name": arch.name,
        "weights": design.weights,
        "logits": "last",
        "vocab_size": arch.vocab_size,
        "max_tokens": arch.max_tokens,
    }
    target = Path(path)
    with storage(target), tempfile.TemporaryDirectory(dir=target.parent) as room:
        held = EXPORTERS.load("torch")(replace(design, weights="fp32"), weights, Path(room) / "weights")
        made = Path(room) / "model"
        asked = program("executorch", PROGRAM)
        asked.ask("write", weights=str(held.absolute()), out=str(made.absolute()), formats=formats, facts=facts)
        made.replace(target)
    return target
