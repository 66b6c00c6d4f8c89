"""Builder of ONNX graphs for the blocks' ``onnx.py``, with projections in all weight formats.

Weights keep the names of the torch module's state dict; a matrix that several layers share is stored once.
Axes: B batch, T new tokens, D model width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from chipwise.core.arrays import AnyArray, Float32Array
from chipwise.errors import SpecError, Unsupported
from chipwise.model.blocks.quantize import NEAREST, Packed, Packing, packed_zeros

MICROSOFT = "com.microsoft"


@dataclass(kw_only=True)
class GraphBuilder:
    """Nodes, stored tensors, inputs and outputs of one graph, in order of addition."""

    weights: Mapping[str, AnyArray]
    format_of: Callable[[str], str]  # maps the name of a stored matrix to its format
    packing: Packing = NEAREST
    nodes: list[NodeProto] = field(default_factory=list)
    stored: dict[str, TensorProto] = field(default_factory=dict)
    inputs: list[ValueInfoProto] = field(default_factory=list)
    outputs: list[ValueInfoProto] = field(default_factory=list)

    def node(
        self, op: str, inputs: Sequence[str], outputs: str | Sequence[str], **attributes: float | str | Sequence[int]
    ) -> str:
        """Adds a node named after its first output, and returns that output. ``domain`` may be among the attributes."""
        names = [outputs] if isinstance(outputs, str) else list(outputs)
        self.nodes.append(helper.make_node(op, list(inputs), names, name=names[0], **attributes))
        return names[0]

    def input(self, name: str, element: int, shape: Sequence[int | str]) -> str:
        """Declares an input of the graph."""
        self.inputs.append(helper.make_tensor_value_info(name, element, list(shape)))
        return name

    def output(self, name: str, shape: Sequence[int | str]) -> None:
        """Declares an FP32 output of the graph."""
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))

    def weight(self, name: str, shape: Sequence[int]) -> Float32Array:
        """The FP32 values of the weight ``name``.

        Raises:
            SpecError: The weight is missing or does not have the shape that the architecture needs.
        """
        if name not in self.weights:
            raise SpecError("is missing from the weights", field=name)
        value = np.ascontiguousarray(self.weights[name], dtype=np.float32)
        if value.shape != tuple(shape):
            raise SpecError(f"has shape {value.shape}; the architecture needs {tuple(shape)}", field=name)
        return value

    def store(self, name: str, make: Callable[[], AnyArray]) -> str:
        """Stores the tensor ``name``, which ``make`` computes if it is not stored yet; returns the name."""
        if name not in self.stored:
            self.stored[name] = numpy_helper.from_array(np.ascontiguousarray(make()), name)
        return name

    def tensor(self, name: str, *shape: int) -> str:
        """Stores the weight ``name`` in FP32, unchanged, such as a norm, a bias or a table; returns the name."""
        return self.store(name, lambda: self.weight(name, shape))

    def projection(
        self, place: str, x: str, *, k: int, parts: Mapping[str, int], key: str = "", bias: bool = False
    ) -> str:
        """``x`` (…, k) times the concatenated matrices ``parts`` (each (width, k) as in torch), plus biases.

        Args:
            place: Name of the result.
            x: The activations.
            k: Width of ``x``.
            parts: Names of the matrices without ``.weight``, each with its number of rows.
            key: Name under which the joined matrix is stored; by default the first matrix's name.
            bias: Whether each matrix has a ``.bias``.
        """
        key = key or next(iter(parts))
        stored = self.format_of(f"{key}.weight")

        def matrix() -> Float32Array:
            return np.concatenate([self.weight(f"{part}.weight", (rows, k)) for part, rows in parts.items()])

        def vector() -> Float32Array:
            return np.concatenate([self.weight(f"{part}.bias", (rows,)) for part, rows in parts.items()])

        biases = [self.store(f"{key}.bias", vector)] if bias else []
        if stored == "fp32":
            product = f"{place}.product" if bias else place
            self.node("MatMul", [x, self.store(f"{key}.weight", lambda: matrix().T)], product)
            return self.node("Add", [product, *biases], place) if bias else product
        if stored == "int8":
            values, scales, _ = self._packed(key, stored, parts, matrix, lambda packed: packed.values.T)
            inputs = [x, values, scales, *(["", *biases] if bias else [])]
            return self.node("DynamicQuantizeMatMul", inputs, place, domain=MICROSOFT)
        if stored == "int4":
            values, scales, zeros = self._packed(key, stored, parts, matrix, lambda packed: packed.values)
            inputs = [x, values, scales, *([*(zeros or [""]), "", *biases] if bias else zeros)]
            return self.node(
                "MatMulNBits",
                inputs,
                place,
                domain=MICROSOFT,
                K=k,
                N=sum(parts.values()),
                bits=4,
                block_size=self.packing.grid.block,
                accuracy_level=4,
            )
        raise Unsupported(f"ONNX files cannot have {stored} weights; use fp32, int8 or int4")

    def _packed(
        self,
        key: str,
        form: str,
        parts: Mapping[str, int],
        matrix: Callable[[], Float32Array],
        laid_out: Callable[[Packed], AnyArray],
    ) -> tuple[str, str, list[str]]:
        """Names of the tensors that store the joined matrix of ``parts``: integers, scales, list of zero points.

        The list is empty if the format has no zero points. The matrix is packed on the first call only.
        """
        values, scales, zeros = f"{key}.{form}", f"{key}.scale", f"{key}.zero"
        if values not in self.stored:
            packed = self.packing.pack(f"{next(iter(parts))}.weight", matrix(), form)
            self.store(values, lambda: laid_out(packed))
            self.store(scales, lambda: packed.scales)
            if packed.zeros is not None:
                nibbles = packed_zeros(packed.zeros)
                self.store(zeros, lambda: nibbles)
        return values, scales, [zeros] if zeros in self.stored else []


def reshaped(graph: GraphBuilder, x: str, shape: Sequence[int], place: str) -> str:
    """Adds a node that reshapes ``x`` to ``shape``."""
    name = f"shape.{'x'.join(map(str, shape))}"
    return graph.node("Reshape", [x, graph.store(name, lambda: np.array(shape, np.int64))], place)
