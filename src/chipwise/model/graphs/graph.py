"""Records of a user's ONNX model: its inputs, and its operators with sizes, FLOPs and bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

Shape: TypeAlias = tuple[int, ...]
UNNAMED = "?"  # an open axis without a name
CONTROL = ("If", "Loop", "Scan")  # operators whose work is that of the nodes of their inner graphs

PRODUCTS = (
    "conv", "pointwise conv", "grouped conv", "depthwise conv", "transposed conv", "matmul", "batched matmul",
    "attention", "recurrent",
)  # fmt: skip
"""Classes of operators that compute sums of products, such as matrix products; their FLOPs are multiply-adds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphInput:
    """An input of a graph. ``shape`` has the sizes of fixed axes and the names of open axes (``?`` without a name)."""

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int | str, ...]
    rows: int | None = None  # rows of the smallest embedding that the input indexes; None if it indexes none

    def said(self) -> str:
        """The shape as text, such as ``(batch, 3, 224, 224)``."""
        return f"({', '.join(map(str, self.shape))})"

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether the input accepts an array of this shape."""
        return len(shape) == len(self.shape) and all(
            isinstance(wanted, str) or wanted == size for wanted, size in zip(self.shape, shape, strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOp:
    """One operator of the graph that ONNX Runtime has fused."""

    name: str
    op_type: str  # such as FusedConv
    kind: str  # class of the operator, such as "depthwise conv"; "unknown" if the operator cannot be counted
    module: str  # path of the module that it comes from; "" if unknown
    flops: int | None  # a multiply-add is two; taps on padding are left out; None if it cannot be counted
    padded_flops: int = 0  # FLOPs on taps that lie on padding, which some runtimes compute as well
    weight_bytes: int = 0
    read_bytes: int = 0  # activations
    write_bytes: int = 0
    dtype: str = "fp32"  # number format of the arithmetic
    runs: int = 1  # how often the operator runs in one pass; more than once in loops
    gemm: Shape = ()  # as matrix products: their number, and rows, columns and depth of each
    inputs: tuple[Shape, ...] = ()
    outputs: tuple[Shape, ...] = ()
    output: str = ""  # name of the first output, by which a profile's nodes are recognised

    @property
    def bytes(self) -> int:
        """Number of bytes that one run of the operator moves if nothing is cached."""
        return self.weight_bytes + self.read_bytes + self.write_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A user's model with fixed axes. ``ops`` are in execution order."""

    path: str
    inputs: tuple[GraphInput, ...]  # with all axes fixed
    outputs: tuple[str, ...]
    values: Mapping[str, object]  # inputs that were fixed to a value
    ops: tuple[GraphOp, ...]
    opset: int
    parameters: int
    weight_bytes: int  # stored
    dtype: str  # format of most FLOPs: fp32, fp16, int8, int4
    notes: tuple[str, ...] = field(default=())

    @property
    def flops(self) -> int:
        """FLOPs of one pass through all operators that can be counted."""
        return sum((op.flops or 0) * op.runs for op in self.ops)

    @property
    def product_flops(self) -> int:
        """FLOPs of convolutions, matrix products, attention and recurrent layers, including products with padding.

        Tools that report a model's FLOPs usually count exactly these FLOPs.
        """
        return sum(((op.flops or 0) + op.padded_flops) * op.runs for op in self.ops if op.kind in PRODUCTS)

    @property
    def uncounted(self) -> tuple[GraphOp, ...]:
        """Operators whose FLOPs and bytes are unknown."""
        return tuple(op for op in self.ops if op.flops is None)
