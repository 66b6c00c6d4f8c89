"""Writes decoders in formats whose converters live in Python environments of their own (``core/environments.py``)."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.core.environments import program
from chipwise.core.files import storage
from chipwise.deploy.export.exporters import EXPORTERS
from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.formats import matrix_of
from chipwise.model.blocks.quantize import Packing
from chipwise.model.walk.calibration import restored
from chipwise.model.walk.weights import weight_shapes

TITLES = {"executorch": "ExecuTorch", "litert": "LiteRT", "coreml": "Core ML"}
FORMATS = {**dict.fromkeys(TITLES, ("fp32", "int8", "int4")), "coreml": ("fp32", "fp16", "int8", "int4")}
"""Weight formats of these files."""
GROUP = 32  # values along k that share an int4 scale


def check_blocks(arch: ArchSpec, kind: str) -> None:
    """Checks that a file of the format ``kind`` can hold every block.

    Raises:
        Unsupported: It is no decoder, or a layer has a convolution or attends within a window.
    """
    if not (arch.causal and arch.head.writes):
        raise Unsupported(f"{arch.name}: only decoders that write text are exported to {TITLES[kind]}")
    for number, layer in enumerate(arch.layers):
        if layer.convs:
            raise Unsupported(f"{arch.name}: layer {number} has a convolution, which files for {TITLES[kind]} lack")
        window = layer.attention.window if layer.attention is not None else None
        if window is not None and window < arch.max_tokens:
            raise Unsupported(
                f"{arch.name}: layer {number} attends within a window, which files for {TITLES[kind]} lack"
            )


def convert(
    design: Design, weights: Mapping[str, AnyArray], path: str | Path, *, kind: str, module: str, packing: Packing
) -> Path:
    """Writes ``design`` with ``weights`` (named as the torch module's state dict) by the program ``module``.

    The environment has the name of the format, ``kind``. ``packing`` rounds matrices as for ONNX: int8 with a scale
    for each row, int4 in groups of 32. Their inputs are rounded to int8 as they come, one scale for each position, but
    by Core ML.

    Raises:
        Unsupported: A block or a weight format has no such file.
        Unreachable: The environment is missing; the message says how to make it.
        MeasurementError: The converter cannot convert the model.
    """
    from safetensors.numpy import save_file

    packing = replace(packing, grid=replace(packing.grid, positive=True))
    check_blocks(design.arch, kind)
    if lacks := set(design.formats.all) - set(FORMATS[kind]):
        raise Unsupported(f"{TITLES[kind]} files are written in {', '.join(FORMATS[kind])}, not {min(lacks)}")
    arch, held = restored(replace(design, weights="fp32"), weights, packing)
    held["head.weight"] = held["head.weight"].copy()  # safetensors stores no two names of one array
    formats, scales = dict[str, str](), dict[str, AnyArray]()
    for name, (*_, width) in weight_shapes(arch).items():
        if (matrix := matrix_of(name)) is None or (form := design.formats.of(matrix)) == "fp32":
            continue
        if form == "int4" and width % GROUP:
            raise Unsupported(f"{name}: int4 for {TITLES[kind]} needs rows of a multiple of {GROUP}, not {width}")
        formats[name] = form
        if form == "fp16":
            continue
        packed = packing.pack(name, held[name], form)
        held[name] = packed.restored()
        scales[name] = np.ascontiguousarray(packed.scales.reshape(len(held[name]), -1))
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
        source = EXPORTERS.load("torch")(Design(arch=arch), held, Path(room) / "weights")
        beside, made = Path(room) / "scales", Path(room) / "model"
        save_file(scales, beside)
        asked = program(kind, module)
        places = {"weights": str(source.absolute()), "scales": str(beside.absolute()), "out": str(made.absolute())}
        asked.ask("write", **places, formats=formats, facts=facts)
        made.replace(target)
    return target
