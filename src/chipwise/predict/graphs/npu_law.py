"""A law for the seconds of an operator on a Qualcomm NPU: the operator's amounts of work times fitted rates.

    t = Σ over amounts of work (amount · nominal seconds · e^(Σ terms))

Each rate has its own term, and further terms for its deviations by number format, runtime, NPU generation, product
class and chip. A number format has one deviation for each rate, and one for each unit, which all rates in that unit
share. All terms are shrunk towards zero, so a few published runs change a rate only slightly. NPUs compute matrix
products and convolutions in blocks of 32 channels, so sizes are rounded up to whole blocks. Tensors that do not fit in
the NPU's own memory also move to and from DRAM.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from chipwise.core.fields import build
from chipwise.core.files import read_text
from chipwise.model.graphs.graph import GraphOp
from chipwise.predict.graphs.law import QUICK
from chipwise.predict.graphs.npu_chips import Chip

DATA = Path(__file__).parents[1] / "data" / "npu_law.json"
BLOCK = 32  # channels of a block of the matrix unit
TILE = (8, 4)  # rows and columns of an image in a block
UNTIMED = ("view", "format")  # conversions between number formats are part of the compiled operators
FUSED = ("Relu", "Clip")  # computed together with the operator before them
FAR_BYTES = 2**22  # the tensors of an operator that moves more do not fit in the NPU's own memory
IMAGE_AXES = 4  # batch, channels and two of space
FEW_CHANNELS = 16  # inputs with fewer channels, such as images, leave most of a block empty
WIDTHS: Mapping[str, tuple[float, float]] = {"float": (2, 2), "w8a16": (2, 1), "w8a8": (1, 1), "w4a16": (2, 0.5)}
"""Bytes per activation and bytes per weight, by number format."""
STORED = {"fp64": 8.0, "fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "int8": 1.0, "uint8": 1.0, "int4": 0.5}
PASS, NODE = "pass calls", "node calls"
NOMINAL_S: Mapping[str, float] = {
    PASS: 1.5e-4, NODE: 1.5e-6, "conv flops": 1e-13, "pointwise conv flops": 1e-13, "matmul flops": 1.25e-13,
    "few channels conv flops": 2e-12, "grouped conv flops": 1e-12, "depthwise conv flops": 2.5e-12,
    "transposed conv flops": 5e-13, "volume conv flops": 2e-13, "batched matmul flops": 3e-13,
    "recurrent steps calls": 2e-6, "weights bytes": 2e-11, "product bytes": 3e-12, "batched matmul bytes": 5e-12,
    "far bytes": 1e-11, "elementwise bytes": 5e-12, "slow bytes": 1e-11, "reduction bytes": 1e-11,
    "move bytes": 1e-11, "concat bytes": 5e-12, "transpose bytes": 2e-11, "pool bytes": 1e-11,
    "function values": 5e-11, "resize values": 5e-11,
}  # fmt: skip
"""Seconds per FLOP, byte, value or call on a typical chip, by amount of work. A fit starts from these values."""
CONVS = ("conv", "pointwise conv", "grouped conv", "depthwise conv", "transposed conv")
SPILLED = ("elementwise", "move", "norm", "softmax", "pool", "resize", "transcendental")


@dataclass(frozen=True, slots=True, kw_only=True)
class NpuLaw:
    """The fitted terms, and half-widths of 90 % intervals as logarithms, with keys ``SITUATION|FORMAT``.

    There are three situations. ``family``: the fit has runs on the chip, but none of a model of the same family.
    ``chip``: the fit has no runs on the chip, and none of a model of the same family. ``taught``: as ``chip``, but five
    other models in the same format were measured on the chip to correct the law.
    """

    terms: Mapping[str, float]
    halfwidths: Mapping[str, float]
    chips: frozenset[str]
    models: int
    source: str


@functools.cache
def law() -> NpuLaw:
    """The bundled law."""
    return build(NpuLaw, json.loads(read_text(DATA)), file=str(DATA))


def rates(terms: Mapping[str, float], chip: Chip, runtime: str, precision: str) -> dict[str, float]:
    """Maps the name of each kind of work to its rate: seconds per FLOP, byte, value or call.

    Args:
        terms: Fitted terms by name.
        chip: The chip.
        runtime: ``tflite``, ``qnn`` or ``onnx``.
        precision: A number format of ``WIDTHS``.
    """
    return {
        name: nominal_s * math.exp(sum(terms.get(term, 0.0) for term in terms_of(name, chip, runtime, precision)))
        for name, nominal_s in NOMINAL_S.items()
    }


def terms_of(name: str, chip: Chip, runtime: str, precision: str) -> tuple[str, ...]:
    """Names of the terms of the rate ``name``: its own term, and the deviations for the format, runtime and chip."""
    unit = name.rpartition(" ")[2]
    unit = "flops" if unit == "values" else unit
    found = [name, f"{name}|{precision}", f"format|{precision}|{unit}"]
    found += [f"runtime|{runtime}|{precision}", f"runtime|{runtime}|{precision}|{unit}"]
    for level in (chip.market, f"npu {chip.npu}", chip.name):
        found += [f"chip|{level}", f"chip|{level}|{precision}", f"chip|{level}|{unit}"]
        found.append(f"chip|{level}|{unit}|{precision}")
    return tuple(found)


def sums_of(ops: Iterable[GraphOp], precision: str) -> dict[str, float]:
    """Maps the name of each kind of work to its amount, summed over the operators of a pass."""
    found = {PASS: 1.0}
    for op in ops:
        for name, amount in amounts_of(op, precision).items():
            found[name] = found.get(name, 0.0) + amount
    return found


def amounts_of(op: GraphOp, precision: str) -> dict[str, float]:
    """Maps each kind of work to its amount in all runs of an operator in a pass; the unit is the name's last word."""
    found: dict[str, float] = {}
    if op.flops is None or op.kind in UNTIMED or op.op_type in FUSED:
        return found
    stored = STORED.get(op.dtype, 4.0)
    of_activations, of_weights = (width / stored for width in WIDTHS[precision])
    moved = (op.read_bytes + op.write_bytes) * of_activations
    found[NODE] = 1
    if op.kind in CONVS or op.kind == "matmul":
        found.update(_of_product(op))
        found["product bytes"] = moved
    elif op.kind in ("batched matmul", "attention"):
        found["batched matmul flops"], found["batched matmul bytes"] = op.flops, moved
        if op.kind == "attention":
            products, rows, columns, _ = op.gemm
            found["function values"] = products * rows * columns
    elif op.kind == "recurrent":
        found["recurrent steps calls"] = op.gemm[0]
    elif op.kind in ("norm", "softmax", "resize", "transcendental"):
        name = "resize" if op.kind == "resize" else "function"
        found[f"{name} values"] = math.prod(op.outputs[0]) if op.outputs else 0
    else:
        quick = {"elementwise": "elementwise" if op.op_type in (*QUICK, "BatchNormalization") else "slow"}
        moves = {
            "move": {"Transpose": "transpose", "Concat": "concat"}.get(op.op_type, "move"),
            "pool": "pool",
            "reduction": "reduction",
        }
        found[f"{(quick | moves).get(op.kind, 'slow')} bytes"] = moved
    if op.gemm:
        found["weights bytes"] = op.weight_bytes * of_weights
    if moved > FAR_BYTES and (op.kind in SPILLED or op.kind in CONVS or op.kind == "matmul"):
        found["far bytes"] = moved
    return {name: amount * op.runs for name, amount in found.items() if amount}


def _of_product(op: GraphOp) -> Mapping[str, float]:
    """FLOPs of a convolution or a matrix product with weights, with sizes rounded up to whole blocks."""
    _, rows, columns, depth = op.gemm
    flops = (op.flops or 0) * _blocks(columns)
    if op.outputs and len(op.outputs[0]) == IMAGE_AXES:
        flops *= _blocks(op.outputs[0][2], TILE[0]) * _blocks(op.outputs[0][3], TILE[1])
    if op.kind == "matmul":
        return {"matmul flops": flops * _blocks(rows) if rows > 2 else float(op.flops or 0)}
    if op.inputs and len(op.inputs[0]) > IMAGE_AXES:
        patches = rows * depth == math.prod(op.inputs[0])  # without overlap: each value is read once
        return {"matmul flops" if patches else "volume conv flops": flops}
    channels = op.inputs[0][1] if op.inputs and len(op.inputs[0]) > 1 else 1
    if op.kind in ("depthwise conv", "transposed conv"):
        return {f"{op.kind} flops": float(op.flops or 0)}
    if op.kind == "grouped conv":
        return {"grouped conv flops": flops}
    if channels < FEW_CHANNELS:
        return {"few channels conv flops": flops}
    return {f"{op.kind} flops": flops * _blocks(channels)}


def _blocks(size: int, block: int = BLOCK) -> float:
    """``size``, rounded up to a multiple of ``block`` and divided by ``size``."""
    return -(-size // block) * block / max(1, size)
