"""ONNX files with products in other number formats, by the runtime's own quantisation. Runs in a child process.

A file is described by its :data:`~chipwise.design.quantize.node_choices.Formats`: the format of each operator that
multiplies by weights, by the name of its node. Formats are applied one after the other, each to its own nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper, version_converter
from onnxruntime.quantization import (
    CalibrationMethod,
    QDQQuantizer,
    QuantType,
    create_calibrator,
)
from onnxruntime.quantization.calibrate import TensorsData
from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer
from onnxruntime.quantization.quant_utils import QuantizationMode
from onnxruntime.transformers.float16 import convert_float_to_float16

from chipwise.core.arrays import AnyArray, Float32Array
from chipwise.deploy.graphs.inputs import Feed
from chipwise.design.quantize.node_choices import (
    BLOCKS,
    DYNAMIC,
    OTHERS,
    PRODUCTS,
    STATIC,
    Formats,
    Product,
)
from chipwise.errors import Unsupported
from chipwise.hardware.detect import SATURATING, detect
from chipwise.model.blocks.quantize import BLOCK, quantize_int4
from chipwise.model.graphs.operators import all_nodes, inner_graphs
from chipwise.model.graphs.read import fix

LEAST_OPSET = 13  # of QuantizeLinear with a scale for each channel
MOST_BYTES = 2**31 - 2**20  # of one protobuf
MOST_HISTOGRAMS = 16  # samples for the calibration by percentiles, which keeps every intermediate value


def prepare(
    source: str,
    out: str,
    *,
    values: Mapping[str, float],
    shapes: Mapping[str, Sequence[int]],
    optimise: bool = True,
) -> list[Product]:
    """Writes the graph in the form that the formats start from, and returns its products, in the order of the graph.

    Inputs in ``values`` are fixed (they stay inputs and are ignored), open axes of inputs in ``shapes`` get these
    sizes, constants are folded, nodes get unique names, ``Gemm`` becomes ``MatMul`` and ``Add``, and an old opset is
    raised.

    Raises:
        Unsupported: The graph is larger than one protobuf can be.
    """
    model = onnx.load(source)
    if model.ByteSize() > MOST_BYTES:
        raise Unsupported(f"{source}: graphs of more than 2 GB cannot be quantised in one file")
    declared = {item.name: item for item in model.graph.input if item.name in values}
    for item in declared.values():
        tensor_type = item.type.tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(tensor_type.elem_type)
        array = np.full([max(1, axis.dim_value) for axis in tensor_type.shape.dim], values[item.name], dtype)
        model.graph.initializer.append(numpy_helper.from_array(array, item.name))
        model.graph.input.remove(item)
    if _opset(model) < LEAST_OPSET:
        model = version_converter.convert_version(model, LEAST_OPSET)
    if optimise:
        model = _folded(model, out)
    if shapes:  # after a first pass, because the runtime may fail to inline nested branches at once
        fix(model, source, shapes, {})
        model = _folded(model, out) if optimise else model
    _split_gemm(model.graph)
    for i, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{i}"
    stored = {tensor.name for tensor in model.graph.initializer}
    for name in declared.keys() & stored:  # the fixed value is still used, so it needs another name than the input
        _rename(model.graph, name, f"{name}.fixed")
    model.graph.input.extend(declared.values())
    onnx.save(model, out)
    return list(_products(model.graph))


def _folded(model: onnx.ModelProto, room: str) -> onnx.ModelProto:
    """The model after the runtime's basic optimisations, which fold constants and branches."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath, options.log_severity_level = room, 3
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(room)


def _opset(model: onnx.ModelProto) -> int:
    return max((int(item.version) for item in model.opset_import if item.domain in ("", "ai.onnx")), default=1)


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    for tensor in graph.initializer:
        tensor.name = new if tensor.name == old else tensor.name
    for node in graph.node:
        for i, name in enumerate(node.input):
            if name == old:
                node.input[i] = new
        for inner in inner_graphs(node):
            _rename(inner, old, new)


def _split_gemm(graph: onnx.GraphProto) -> None:
    """Replaces each ``Gemm`` with stored weights by ``MatMul`` and ``Add``, which every format can quantise."""
    stored = {tensor.name: tensor for tensor in graph.initializer}
    nodes = []
    for node in graph.node:
        settings = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        plain = settings.get("alpha", 1.0) == settings.get("beta", 1.0) == 1.0 and not settings.get("transA", 0)
        if node.op_type != "Gemm" or not plain or node.input[1] not in stored:
            nodes.append(node)
            continue
        weight = node.input[1]
        if settings.get("transB", 0):
            weight = f"{node.input[1]}.transposed"
            if weight not in stored:
                turned = np.ascontiguousarray(numpy_helper.to_array(stored[node.input[1]]).T)
                stored[weight] = numpy_helper.from_array(turned, weight)
                graph.initializer.append(stored[weight])
        bias = [name for name in node.input[2:] if name]
        product = f"{node.output[0]}.product" if bias else node.output[0]
        nodes.append(helper.make_node("MatMul", [node.input[0], weight], [product]))
        if bias:
            nodes.append(helper.make_node("Add", [product, *bias], [node.output[0]]))
    del graph.node[:]
    graph.node.extend(nodes)
    _drop_unused(graph)


def _products(graph: onnx.GraphProto) -> Iterator[Product]:
    stored = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type not in PRODUCTS or node.input[1] not in stored:
            continue
        weight = stored[node.input[1]]
        if weight.data_type == onnx.TensorProto.FLOAT:
            yield Product(node=node.name, operator=node.op_type, weights=int(np.prod(weight.dims)))


class Maker:
    """Makes files from a prepared graph; ranges of activations are measured once for each method.

    Args:
        prepared: The file that :func:`prepare` wrote.
        feeds: Data for calibration.
        folder: For temporary files.
    """

    def __init__(self, prepared: str, feeds: Sequence[Feed], folder: Path) -> None:
        self._prepared, self._feeds, self._folder = prepared, feeds, folder
        self._model = onnx.load(prepared)
        self._ranges: dict[str, TensorsData] = {}
        self._seven_bits = detect().instructions in SATURATING
        logging.getLogger().setLevel(logging.ERROR)  # the quantisers give advice on the command line

    def make(self, formats: Formats, out: str) -> int:
        """Writes the file with these formats; returns its bytes."""
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        if "fp16" in formats.values():
            model = convert_float_to_float16(model, keep_io_types=True)
        for name in (*STATIC, *BLOCKS, *DYNAMIC):
            nodes = [node for node, each in formats.items() if each == name]
            if nodes:
                model = self._applied(model, name, nodes)
        onnx.save(model, out)
        return Path(out).stat().st_size

    def _applied(self, model: onnx.ModelProto, name: str, nodes: list[str]) -> onnx.ModelProto:
        if name in BLOCKS:
            _in_blocks(model.graph, set(nodes), bits=4 if name == "int4" else 8)
            if not any(item.domain == "com.microsoft" for item in model.opset_import):
                model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
            return model
        model = self._with_shapes(model)
        kinds = {node.op_type for node in model.graph.node if node.name in nodes}
        if name in DYNAMIC:
            quantiser = ONNXQuantizer(
                model,
                name == "dynamic-channel",
                self._seven_bits,
                QuantizationMode.IntegerOps,
                False,
                QuantType.QInt8,
                QuantType.QUInt8,
                None,
                nodes,
                [],
                sorted(kinds),
                {"MatMulConstBOnly": True},
            )
            quantiser.quantize_model()
            return quantiser.model.model
        if OTHERS in nodes:
            left = {node.name for node in model.graph.node if node.op_type in PRODUCTS} - set(nodes)
            nodes = [node.name for node in model.graph.node if node.name not in left]
            kinds = {node.op_type for node in model.graph.node}
        quantiser = QDQQuantizer(
            model,
            name != "static-tensor",
            self._seven_bits,
            QuantType.QInt8,
            QuantType.QUInt8,
            self._ranges_by("percentile" if name == "static-percentile" else "least and most"),
            nodes,
            [],
            sorted(kinds),
            {},
        )
        quantiser.quantize_model()
        return quantiser.model.model

    def _with_shapes(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """The model with inferred shapes, without which the quantisers leave operators as they are."""
        try:
            return onnx.shape_inference.infer_shapes(model)
        except onnx.shape_inference.InferenceError:
            return model

    def _ranges_by(self, method: str) -> TensorsData:
        if method not in self._ranges:
            percentile = method == "percentile"
            calibrator = create_calibrator(
                self._prepared,
                None,
                augmented_model_path=str(self._folder / "augmented.onnx"),
                calibrate_method=CalibrationMethod.Percentile if percentile else CalibrationMethod.MinMax,
                extra_options={"percentile": 99.99} if percentile else {},
            )
            calibrator.collect_data(_Reader(self._feeds[:MOST_HISTOGRAMS] if percentile else self._feeds))
            self._ranges[method] = calibrator.compute_data()
        return self._ranges[method]


class _Reader:
    """Gives feeds one by one, as the runtime's calibration asks for them."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self._left = iter(feeds)

    def get_next(self) -> Feed | None:
        """The next feed; None at the end."""
        return next(self._left, None)


def _in_blocks(graph: onnx.GraphProto, nodes: set[str], *, bits: int) -> None:
    """Replaces products by ``MatMulNBits``: weights in blocks of 32 with one scale each, activations in int8."""
    stored = {tensor.name: tensor for tensor in graph.initializer}
    for i, node in enumerate(graph.node):
        if node.name not in nodes:
            continue
        weight = numpy_helper.to_array(stored[node.input[1]])  # (k, n)
        k, n = weight.shape
        values, scales = _blocks_of(np.ascontiguousarray(weight.T, np.float32), bits)
        names = [f"{node.input[1]}.int{bits}", f"{node.input[1]}.int{bits}.scales"]
        for name, array in zip(names, (values, scales.reshape(-1)), strict=True):
            if name not in stored:
                stored[name] = numpy_helper.from_array(array, name)
                graph.initializer.append(stored[name])
        graph.node[i].CopyFrom(
            helper.make_node(
                "MatMulNBits",
                [node.input[0], *names],
                list(node.output),
                name=node.name,
                domain="com.microsoft",
                K=k,
                N=n,
                bits=bits,
                block_size=BLOCK,
                accuracy_level=4,
            )
        )
    _drop_unused(graph)


def _drop_unused(graph: onnx.GraphProto) -> None:
    """Removes stored tensors that nothing uses any more."""
    used = {item.name for item in graph.output}
    for node in all_nodes(graph):
        used.update(node.input)
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _blocks_of(matrix: Float32Array, bits: int) -> tuple[AnyArray, Float32Array]:
    """Integers and scales of a matrix (n, k) as ``MatMulNBits`` stores them: zero is 8, or 128."""
    if bits == 4:
        return quantize_int4(matrix)
    n, k = matrix.shape
    blocks = np.zeros((n, -(-k // BLOCK), BLOCK), np.float32)
    blocks.reshape(n, -1)[:, :k] = matrix
    scales = np.abs(blocks).max(-1) / np.float32(127)
    scales[scales == 0] = 1.0
    return (np.round(blocks / scales[..., None]) + 128).astype(np.uint8), scales
