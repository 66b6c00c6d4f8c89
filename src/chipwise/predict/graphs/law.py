"""A law for the seconds of an operator: a sum of its calls, FLOPs and bytes, with fitted constants for its class.

    t = Σ over amounts of work (amount · constant · scale of the chip)

The constants were fitted to whole models and their profiled operators on one CPU core (``benchmarks/graph_law.py``).
For another chip, the time for FLOPs is divided by (the chip's peak / the core's peak), and the time for bytes by (the
chip's bandwidth / the core's bandwidth). The time for calls is multiplied by (the chip's time for a call / the core's
time for a call). So the law assumes that a class of operators reaches the same share of the peak and of the bandwidth
on every chip. A view, such as ``Flatten``, starts no kernel and takes the same time on every chip.
"""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from chipwise.core.fields import build
from chipwise.core.files import read_text
from chipwise.model.graphs.graph import GraphOp

DATA = Path(__file__).parents[1] / "data" / "graph_law.json"
LANES = 16  # values of a vector of 512 bits; narrower outputs leave lanes idle
FEW_ROWS = 2  # matrix products with at most this many rows stream their weights
FUNCTIONS = {
    "Erf": "erf", "Gelu": "erf", "BiasGelu": "erf", "Tanh": "tanh", "FastGelu": "tanh", "Sigmoid": "sigmoid",
    "QuickGelu": "quick gelu",
}  # fmt: skip
QUICK = ("Add", "Mul", "Relu", "Clip", "Sub", "Max", "Min", "HardSigmoid")
MEANS = ("GlobalAveragePool", "ReduceMean")
MOVES = {"Transpose": "transpose", "Slice": "slice", "Concat": "move", "Split": "move", "Pad": "move", "Cast": "move"}
FAR_BYTES = 2**23  # matrices above this come from memory at every pass
ALIGNED = 4  # blocked layouts need a multiple of this many channels
BLOCKED_AXES = 4  # batch, channels and two of space; other ranks have no blocked layout
QUANTISED = ("conv", "pointwise conv", "grouped conv", "depthwise conv", "matmul", "batched matmul", "recurrent")
CALLS, FLOPS, BYTES = "calls", "flops", "bytes"
"""Units in which amounts of work are counted; the last word of an amount's name is its unit."""
VIEW = f"view {CALLS}"  # a view starts no kernel; its cost is the runtime's own time
Amounts = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """The speeds of a chip that the law needs."""

    flops_per_s: Mapping[str, float]  # dense peak by number format; at least "fp32"
    bytes_per_s: float
    call_s: float  # seconds to start an operator

    def peak(self, dtype: str) -> float:
        """The peak rate in the format ``dtype``, or in fp32 if that format has no rate."""
        return self.flops_per_s.get(dtype, self.flops_per_s["fp32"])


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLaw:
    """The fitted constants, and the prediction errors.

    A constant is the number of seconds that one FLOP, byte or call of its kind takes on the CPU core on which the law
    was fitted.
    """

    seconds: Mapping[str, float]
    reference: Speeds
    halfwidth: float  # half-width of the 90 % interval in logarithms, for a machine whose speeds were measured
    taught_halfwidth: float  # half-width for a chip with a data sheet and five measured files
    unfitted_halfwidth: float  # half-width for a chip that is only known from its data sheet
    classes: Mapping[str, float]  # median error by class of operators, for model families left out of the fit
    source: str

    def seconds_of(self, op: GraphOp, speeds: Speeds) -> float | None:
        """Seconds of all runs of an operator in one pass; None if its FLOPs and bytes are unknown."""
        if op.flops is None:
            return None
        return sum(self._scaled(name, amount, op.dtype, speeds) for name, amount in amounts_of(op).items())

    def parts(self, works: Mapping[str, float], speeds: Speeds) -> dict[str, float]:
        """Seconds that each amount of work in ``works`` takes; ``works`` is a result of :func:`works_of`."""
        split = {key: key.partition("|") for key in works}
        return {key: self._scaled(split[key][2], amount, split[key][0], speeds) for key, amount in works.items()}

    def pass_s(self, speeds: Speeds) -> float:
        """Seconds of a pass without any operators: the overhead of one call of the runtime."""
        return self._scaled(f"pass {CALLS}", 1.0, "fp32", speeds)

    def node_s(self, speeds: Speeds) -> float:
        """Seconds to run an operator that has no work: the overhead of one operator."""
        return self._scaled(f"node {CALLS}", 1.0, "fp32", speeds)

    def call_s(self, node_s: float) -> float:
        """The value of ``Speeds.call_s`` that makes the overhead of one operator ``node_s`` seconds long."""
        return self.reference.call_s * node_s / self.seconds[f"node {CALLS}"]

    def _scaled(self, name: str, amount: float, dtype: str, speeds: Speeds) -> float:
        unit = name.rpartition(" ")[2]
        if unit == FLOPS:
            # the peak of fp32 if the fit saw no matrix products in this format
            own = dtype if dtype in self.reference.flops_per_s and QUANTISED_NAME in name else "fp32"
            scale = self.reference.peak(own) / speeds.peak(dtype)
        elif unit == BYTES:
            scale = self.reference.bytes_per_s / speeds.bytes_per_s
        elif name == VIEW:
            scale = 1.0
        else:
            scale = speeds.call_s / self.reference.call_s
        return amount * self.seconds.get(name, 0.0) * scale


QUANTISED_NAME = "int8"


@functools.cache
def law() -> GraphLaw:
    """The bundled law."""
    return build(GraphLaw, json.loads(read_text(DATA)), file=str(DATA))


def works_of(ops: Iterable[GraphOp], shrink: float = 1.0) -> dict[str, float]:
    """Maps each kind of work, as ``FORMAT|NAME`` such as ``fp32|conv flops``, to its amount in a whole pass.

    Args:
        ops: The operators of the pass.
        shrink: Size of a tensor on the chip, divided by its size in the file.
    """
    found = {f"fp32|pass {CALLS}": 1.0}
    for op in ops:
        for name, amount in ({} if op.flops is None else amounts_of(op)).items():
            key = f"{op.dtype}|{name}"
            found[key] = found.get(key, 0.0) + amount * (shrink if name.endswith(BYTES) else 1.0)
    return found


def amounts_of(op: GraphOp) -> Counter[str]:
    """Maps the name of each kind of work to its amount in all runs of an operator; the unit is the name's last word.

    Raises:
        TypeError: The operator's FLOPs and bytes are unknown.
    """
    found: Counter[str] = Counter()
    if op.kind == "view":
        found[VIEW] = op.runs
        return found
    found[f"node {CALLS}"] = 1
    if op.kind in QUANTISED and op.dtype in ("int8", "uint8", "int4", "int2"):
        found.update(_of_integers(op))
    elif op.kind in ("conv", "pointwise conv", "grouped conv", "depthwise conv", "transposed conv"):
        found.update(_of_convolution(op))
    elif op.gemm:
        found.update(_of_product(op))
    else:
        found.update(_of_values(op))
    return Counter({name: amount * op.runs for name, amount in found.items()})


def _of_integers(op: GraphOp) -> Amounts:
    kind = "recurrent" if op.kind == "recurrent" else "matmul" if "matmul" in op.kind else "conv"
    found = {f"{QUANTISED_NAME} {kind} {FLOPS}": float(op.flops or 0), f"{QUANTISED_NAME} {kind} {BYTES}": op.bytes}
    return found | ({f"recurrent steps {CALLS}": op.gemm[0]} if kind == "recurrent" else {})


def _of_convolution(op: GraphOp) -> Amounts:
    flops, moved = float(op.flops or 0), op.read_bytes + op.write_bytes
    groups, rows, columns, depth = op.gemm
    shape = op.inputs[0] if op.inputs and len(op.inputs[0]) > 2 else (1, LANES, rows)
    channels, space = shape[1], rows // max(1, shape[0])
    lanes = flops * _rounded(columns) / columns
    found = {f"conv weights {BYTES}": float(op.weight_bytes), f"conv {BYTES}": float(moved)}
    aligned = columns % ALIGNED == 0 and (channels < LANES or channels % ALIGNED == 0)
    if op.kind == "grouped conv":
        aligned = channels // groups % LANES == 0 and columns % LANES == 0
    if op.kind in ("depthwise conv", "transposed conv"):
        name = op.kind if len(shape) == BLOCKED_AXES and channels % ALIGNED == 0 else f"unfolded {op.kind}"
        return {f"{name} {FLOPS}": flops, f"{name} {BYTES}": moved}
    if len(shape) != BLOCKED_AXES or not aligned:  # a matrix product for each group, with positions as its columns
        lanes = flops * _rounded(space) / space
        unfolded = 0 if depth == channels // groups else 4 * rows * depth * groups
        found |= {f"unfolded conv {FLOPS}": lanes, f"unfolded conv {BYTES}": unfolded}
        return found | {f"unfolded conv products {CALLS}": groups * shape[0]}
    if op.kind == "grouped conv":
        return found | {f"grouped conv {FLOPS}": lanes}
    if channels < LANES:
        return found | {f"few channels conv {FLOPS}": lanes}
    return found | {f"{op.kind} {FLOPS}": lanes * _rounded(channels) / channels}


def _of_product(op: GraphOp) -> Amounts:
    flops, moved = float(op.flops or 0), op.read_bytes + op.write_bytes
    products, rows, columns, _ = op.gemm
    if op.kind == "recurrent":
        return {
            f"recurrent {FLOPS}": flops,
            f"recurrent steps {CALLS}": products,
            f"recurrent weights {BYTES}": op.weight_bytes * products / 2,
        }
    if op.kind == "matmul":
        if rows <= FEW_ROWS:
            far = "far " if op.weight_bytes > FAR_BYTES else ""
            return {f"vector {FLOPS}": flops, f"{far}vector {BYTES}": op.weight_bytes}
        return {
            f"matmul {FLOPS}": flops * _rounded(columns) / columns,
            f"matmul weights {BYTES}": op.weight_bytes,
            f"matmul {BYTES}": moved,
        }
    return {f"batched {FLOPS}": flops, f"batched {BYTES}": op.bytes, f"batched products {CALLS}": products}


def _of_values(op: GraphOp) -> Amounts:
    """Amounts of work (values, FLOPs or bytes) of an operator that is neither a matrix product nor a convolution."""
    flops, values = float(op.flops or 0), float(math.prod(op.outputs[0])) if op.outputs else 0.0
    if op.kind in ("norm", "softmax"):
        skip = "skip " if op.op_type.startswith("Skip") else ""
        return {f"{skip}{op.kind} values {FLOPS}": values}
    if op.kind == "resize":
        taken = "resize" if op.op_type in ("Resize", "Upsample") else "samples"
        return {f"{taken} {FLOPS}": flops} if flops else {f"nearest {BYTES}": op.bytes}
    if op.kind == "transcendental":
        return {f"{FUNCTIONS.get(op.op_type, 'function')} values {FLOPS}": values}
    if op.kind == "pool":
        return {f"pool {FLOPS}": flops, f"pool {BYTES}": op.bytes}
    if op.kind == "fourier":
        size = 2 * (op.outputs[0][-2] - 1) if op.outputs and len(op.outputs[0]) > 1 else 2
        if size & (size - 1) == 0:
            return {f"fourier {FLOPS}": flops}
        return {f"fourier sums {FLOPS}": 2 * values * size}  # no fast transform: one sum over the window for each value
    name = {
        "elementwise": "elementwise" if op.op_type in QUICK else "elementwise slow",
        "reduction": "mean" if op.op_type in MEANS else "reduction",
        "move": MOVES.get(op.op_type, "move slow"),
    }.get(op.kind, op.kind)
    return {f"{name} {BYTES}": op.bytes}


def _rounded(columns: int) -> int:
    return -(-columns // LANES) * LANES
