"""Writes ONNX files with other number formats, with the runtime's own tools; runs in a child process.

A file is described by its :data:`~chipwise.design.quantize.node_choices.Formats`, which map node names to formats.
Nodes that can have a format are products (operators that multiply by stored weights) and tables (whose rows are looked
up). Formats are applied one after the other, each to its nodes.
"""

from __future__ import annotations

import hashlib
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
from onnxruntime.quantization.calibrate import HistogramCalibrater, HistogramCollector, TensorsData
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
    TABLE,
    Formats,
    Product,
)
from chipwise.errors import Unsupported
from chipwise.hardware.detect import SATURATING, detect
from chipwise.model.blocks.quantize import BLOCK, quantize_int4
from chipwise.model.graphs.operators import all_nodes, inner_graphs
from chipwise.model.graphs.read import fix

LEAST_OPSET = 13  # first opset whose QuantizeLinear has a scale per channel
LEAST_TABLE = 2**16  # fewest numbers in a table of rows that is quantised
MOST_BYTES = 2**31 - 2**20  # most bytes of one protobuf
MOST_HISTOGRAMS = 16  # samples for calibration by percentiles, which counts every intermediate value


def prepare(
    source: str,
    out: str,
    *,
    values: Mapping[str, float],
    shapes: Mapping[str, Sequence[int]],
    optimise: bool = True,
) -> list[Product]:
    """Writes the prepared graph, to which formats are later applied; returns its products in graph order.

    Inputs in ``values`` are replaced by these constants (the inputs remain, but are ignored), and open axes of inputs
    get their sizes from ``shapes``. Constants are folded, nodes get unique names, ``Gemm`` becomes ``MatMul`` and
    ``Add``, and an old opset is updated.

    Raises:
        Unsupported: The graph is larger than the 2 GB limit of protobuf.
    """
    model = onnx.load(source)
    if model.ByteSize() > MOST_BYTES:
        raise Unsupported(f"{source}: graphs of more than 2 GB cannot be quantised")
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
    if shapes:  # in a second pass, because the runtime may fail to inline nested branches at the same time
        fix(model, source, shapes, {})
        model = _folded(model, out) if optimise else model
    _split_gemm(model.graph)
    for i, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{i}"
    stored = {tensor.name for tensor in model.graph.initializer}
    for name in declared.keys() & stored:  # nodes read the fixed value, so it needs another name than the input
        _rename(model.graph, name, f"{name}.fixed")
    model.graph.input.extend(declared.values())
    onnx.save(model, out)
    return list(_products(model.graph))


def _folded(model: onnx.ModelProto, room: str) -> onnx.ModelProto:
    """Applies the runtime's basic optimisations, which fold constants and branches."""
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
    """Replaces every ``Gemm`` that has stored weights by ``MatMul`` and ``Add``, which all formats support."""
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
        if node.op_type not in (*PRODUCTS, TABLE) or (name := _weight_of(node)) not in stored:
            continue
        weight = stored[name]
        count = int(np.prod(weight.dims))
        if node.op_type == TABLE and (
            count < LEAST_TABLE or len(weight.dims) != 2 or weight.dims[1] % BLOCK or any(a.i for a in node.attribute)
        ):
            continue
        if weight.data_type == onnx.TensorProto.FLOAT:
            yield Product(node=node.name, operator=node.op_type, weights=count)


def _weight_of(node: onnx.NodeProto) -> str:
    """Name of a node's stored tensor: the weights of a product, or the rows of a table."""
    return str(node.input[0 if node.op_type == TABLE else 1])


class Maker:
    """Writes files from a prepared graph; activation ranges are measured only once per calibration method.

    Args:
        prepared: The file that :func:`prepare` wrote.
        feeds: Inputs for calibration.
        folder: Folder for temporary files.
    """

    def __init__(self, prepared: str, feeds: Sequence[Feed], folder: Path) -> None:
        self._prepared, self._feeds, self._folder = prepared, feeds, folder
        self._model = onnx.load(prepared)
        self._ranges: dict[str, TensorsData] = {}
        self._seven_bits = detect().instructions in SATURATING
        logging.getLogger().setLevel(logging.ERROR)  # hides the quantisers' advice on their command line

    def make(self, formats: Formats, out: str) -> int:
        """Writes the file with these formats to ``out``; returns its size in bytes."""
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
                # the runtime's own operators, such as MatMulNBits, have no inferred types
                {"MatMulConstBOnly": True, "DefaultTensorType": onnx.TensorProto.FLOAT},
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
        """Adds inferred shapes to the model; the quantisers skip operators without known shapes."""
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
            if percentile:
                _count(calibrator, self._feeds[:MOST_HISTOGRAMS], self._ranges_by("least and most"))
            else:
                calibrator.collect_data(_Reader(self._feeds))
            self._ranges[method] = calibrator.compute_data()
        return self._ranges[method]


def _count(calibrator: HistogramCalibrater, feeds: Sequence[Feed], ranges: TensorsData) -> None:
    """Collects histograms one feed at a time, because shapes may differ between feeds, and to save memory."""
    names = [name for name in ranges.keys() if name in calibrator.tensors_to_calibrate]  # noqa: SIM118
    found: dict[str, tuple[AnyArray, ...]] = {}
    for feed in feeds:
        for name, array in zip(names, calibrator.infer_session.run(names, feed), strict=True):
            least, most = (value.reshape(()) for value in ranges[name].range_value)
            reach = (0.0, max(abs(least.item()), abs(most.item())))
            counts, edges = np.histogram(np.abs(array), calibrator.num_bins, range=reach)
            before = found[name][0] if name in found else 0
            found[name] = (before + counts, edges.astype(array.dtype), least, most)
    calibrator.collector = HistogramCollector(
        calibrator.method,
        calibrator.symmetric,
        calibrator.num_bins,
        calibrator.num_quantized_bins,
        calibrator.percentile,
        calibrator.scenario,
    )
    calibrator.collector.histogram_dict = found


class _Reader:
    """Iterates over feeds with the interface of the runtime's calibration."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self._left = iter(feeds)

    def get_next(self) -> Feed | None:
        """Returns the next feed, or None at the end."""
        return next(self._left, None)


def _in_blocks(graph: onnx.GraphProto, nodes: set[str], *, bits: int) -> None:
    """Replaces matrix products by ``MatMulNBits``: weights in blocks of 32 with one scale each, activations in int8.

    Tables become ``GatherBlockQuantized``. If a table is also the weight of a matrix product, both share the stored
    numbers.
    """
    stored = {tensor.name: tensor for tensor in graph.initializer}
    shared: dict[str, list[str]] = {}
    views: dict[str, onnx.NodeProto] = {}
    for i, node in enumerate(graph.node):
        if node.name not in nodes:
            continue
        weight = numpy_helper.to_array(stored[_weight_of(node)])  # (k, n), or rows (n, k)
        rows = np.ascontiguousarray(weight if node.op_type == TABLE else weight.T, np.float32)
        n, k = rows.shape
        key = hashlib.sha256(rows.tobytes()).hexdigest()
        if key not in shared:
            values, scales = _blocks_of(rows, bits)
            name = f"{_weight_of(node)}.int{bits}.{len(shared)}"
            shared[key] = [name, f"{name}.scales"]
            for name, array in zip(shared[key], (values, scales), strict=True):
                graph.initializer.append(numpy_helper.from_array(array, name))
        settings = {"bits": bits, "block_size": BLOCK}
        if node.op_type == TABLE:
            kind, inputs = "GatherBlockQuantized", [f"{shared[key][0]}.rows", node.input[1], f"{shared[key][1]}.rows"]
            settings |= {"gather_axis": 0, "quantize_axis": 1}
            for name, view in zip(shared[key], inputs[::2], strict=True):  # views, which the runtime computes only once
                if view not in views:
                    graph.initializer.append(numpy_helper.from_array(np.array([n, -1]), f"{view}.shape"))
                views[view] = helper.make_node("Reshape", [name, f"{view}.shape"], [view], name=view)
        else:
            kind, inputs = "MatMulNBits", [node.input[0], *shared[key]]
            settings |= {"K": k, "N": n, "accuracy_level": 4}
        new = helper.make_node(kind, inputs, list(node.output), name=node.name, domain="com.microsoft", **settings)
        graph.node[i].CopyFrom(new)
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*views.values(), *rest])
    _drop_unused(graph)


def _drop_unused(graph: onnx.GraphProto) -> None:
    """Removes stored tensors that no node uses."""
    used = {item.name for item in graph.output}
    for node in all_nodes(graph):
        used.update(node.input)
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _blocks_of(matrix: Float32Array, bits: int) -> tuple[AnyArray, Float32Array]:
    """Integers and scales of a matrix (n, k) as ``MatMulNBits`` stores them; zero is stored as 8 (4 bits) or 128."""
    if bits == 4:
        return quantize_int4(matrix)
    n, k = matrix.shape
    blocks = np.zeros((n, -(-k // BLOCK), BLOCK), np.float32)
    blocks.reshape(n, -1)[:, :k] = matrix
    scales = np.abs(blocks).max(-1) / np.float32(127)
    scales[scales == 0] = 1.0
    return (np.round(blocks / scales[..., None]) + 128).astype(np.uint8), scales
