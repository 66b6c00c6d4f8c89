"""Writes decoders as ``.pte`` files (ExecuTorch with XNNPACK), ``.tflite`` files (LiteRT with XNNPACK) or Core ML
packages.

Each format has a program, ``executorch_program.py``, ``litert_program.py`` or ``coreml_program.py``, which runs the
format's converter in a separate Python environment (``core/environments.py``).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from chipwise.core import units
from chipwise.core.arrays import AnyArray
from chipwise.core.environments import program
from chipwise.core.files import storage
from chipwise.deploy.export.exporters import EXPORTERS
from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.formats import matrix_of
from chipwise.model.blocks.quantize import NEAREST, Packing
from chipwise.model.walk.calibration import restored
from chipwise.model.walk.weights import weight_shapes

TITLES = {"executorch": "ExecuTorch", "litert": "LiteRT", "coreml": "Core ML"}
FORMATS = {**dict.fromkeys(TITLES, ("fp32", "int8", "int4")), "coreml": ("fp32", "fp16", "int8", "int4")}
"""Weight formats that each kind of file can store."""
GROUP = 32  # values along k that share an int4 scale
PACKAGE = "model.mlpackage"  # a folder
FILES = {"executorch": "model.pte", "litert": "model.tflite", "coreml": PACKAGE}
LARGEST = 2**31 - 2**20  # bytes that LiteRT's flatbuffer addresses, less its own tables
UNVERIFIED = (
    "in Core ML, which only runs on macOS and iOS; coremltools converted and read the package, no output was compared"
)


def check_blocks(arch: ArchSpec, kind: str) -> None:
    """Checks that a file of the format ``kind`` can store every block.

    Raises:
        Unsupported: The model is not a decoder, or a layer has a convolution or attends within a window.
    """
    if not (arch.causal and arch.head.writes):
        raise Unsupported(f"{arch.name}: only decoders that write text are exported to {TITLES[kind]}")
    for number, layer in enumerate(arch.layers):
        if layer.convs:
            raise Unsupported(f"{arch.name}: layer {number} has a convolution; {TITLES[kind]} files cannot store it")
        window = layer.attention.window if layer.attention is not None else None
        if window is not None and window < arch.max_tokens:
            raise Unsupported(
                f"{arch.name}: layer {number} attends within a window, which files for {TITLES[kind]} cannot store"
            )


def convert(
    design: Design, weights: Mapping[str, AnyArray], path: str | Path, *, kind: str, packing: Packing = NEAREST
) -> Path:
    """Writes ``design`` with ``weights`` (named as the torch module's state dict) by running a format's converter.

    Conversion takes ten seconds or more, for ExecuTorch half a minute. The Python environment is named after the
    format. ``packing`` determines how matrices are rounded, as in :func:`chipwise.deploy.export.onnx.export`: int8 with
    a scale for each row, int4 in groups of 32. When the model runs, the activations that int8 and int4 matrices
    multiply are rounded to int8 with one scale for each position, except in Core ML.

    The cache has ``max_tokens`` positions of one sequence. In a Core ML package, which is for iOS 18 and macOS 15, the
    cache is a state in FP16; for LiteRT it is among the inputs and outputs.

    Raises:
        Unsupported: The file cannot store a block or a weight format, or the model is too large.
        Unreachable: The environment is missing; the message says how to make it.
        MeasurementError: The converter cannot convert the model.
    """
    if kind == "litert" and (wide := 4 * design.arch.parameters()) > LARGEST:
        raise Unsupported(
            f"{design.arch.name}: has {units.show(wide, 'bytes')} of FP32 weights; LiteRT converts at most 2 GiB"
        )
    from safetensors.numpy import save_file

    packing = replace(packing, grid=replace(packing.grid, positive=True))
    check_blocks(design.arch, kind)
    if lacks := set(design.formats.all) - set(FORMATS[kind]):
        raise Unsupported(f"{TITLES[kind]} files store weights in {', '.join(FORMATS[kind])}, not in {min(lacks)}")
    arch, held = restored(replace(design, weights="fp32"), weights, packing)
    held["head.weight"] = held["head.weight"].copy()  # safetensors refuses one array under two names
    formats, scales = dict[str, str](), dict[str, AnyArray]()
    for name, (*_, width) in weight_shapes(arch).items():
        if (matrix := matrix_of(name)) is None or (form := design.formats.of(matrix)) == "fp32":
            continue
        if form == "int4" and width % GROUP:
            raise Unsupported(
                f"{name}: int4 for {TITLES[kind]} needs rows whose length is a multiple of {GROUP}, not {width}"
            )
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
        asked = program(kind, f"chipwise.deploy.export.{kind}_program")
        places = {"weights": str(source.absolute()), "scales": str(beside.absolute()), "out": str(made.absolute())}
        asked.ask("write", **places, formats=formats, facts=facts)
        made.replace(target)
    return target


to_executorch, to_litert = (partial(convert, kind=kind) for kind in ("executorch", "litert"))
