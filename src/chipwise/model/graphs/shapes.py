"""Finds shapes of a graph's tensors: by ONNX's inference, by rules for ONNX Runtime's operators, or in a test run."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from chipwise.model.graphs.graph import CONTROL, GraphInput, Shape
from chipwise.model.graphs.made import made_inputs
from chipwise.model.graphs.operators import all_nodes
from chipwise.model.graphs.profile import node_runs

Known: TypeAlias = dict[str, tuple[str, Shape]]
"""Dtype (as numpy names it) and shape of tensors, by name."""

LIKE_FIRST = {
    "Gelu", "FastGelu", "QuickGelu", "BiasGelu", "BiasSplitGelu", "SkipLayerNormalization", "LayerNormalization",
    "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "RotaryEmbedding", "BiasDropout", "BiasAdd",
    "SkipGroupNorm", "GroupNorm", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "QuantizeBFP",
}  # fmt: skip
"""Operators of ONNX Runtime whose first output has the shape and type of their first input."""
_OF_PROFILE = {"float": "float32", "double": "float64"}


def infer(model: onnx.ModelProto, known: Known) -> Known:
    """``known`` together with all shapes in the main graph that can be inferred without a run."""
    found = dict(known)
    for _ in range(4):
        before = len(found)
        asked = onnx.ModelProto()
        asked.CopyFrom(model)
        del asked.graph.value_info[:]
        ends = {each.name for each in [*asked.graph.input, *asked.graph.output]}
        for name, (dtype, shape) in found.items():
            if name not in ends:
                element = helper.np_dtype_to_tensor_dtype(helper.np.dtype(dtype)) if dtype else TensorProto.FLOAT
                asked.graph.value_info.append(helper.make_tensor_value_info(name, element, shape))
        inferred = onnx.shape_inference.infer_shapes(asked, data_prop=True)
        found |= _whole(inferred.graph)
        for node in model.graph.node:
            found |= _by_rule(node, found)
        if len(found) == before:
            break
    return found


def unresolved(graph: onnx.GraphProto, known: Known) -> list[str]:
    """Names of nodes whose output shapes are not all known, and of nodes that contain graphs (branches, loops)."""
    return [
        node.name
        for node in graph.node
        if node.op_type in CONTROL or any(name and name not in known for name in node.output)
    ]


def run(file: Path, inputs: list[GraphInput]) -> tuple[Known, dict[str, int]]:
    """Runs the graph with random inputs. Returns the tensors' shapes, and how often each node ran."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_profiling = True
    options.profile_file_prefix = str(file.with_suffix(""))
    session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    session.run(None, made_inputs(inputs, seed=0))
    graph = onnx.load(str(file), load_external_data=False).graph
    nodes = {node.name: node for node in all_nodes(graph)}
    stored = {tensor.name for tensor in graph.initializer}
    known: Known = {}
    runs: dict[str, int] = dict.fromkeys(nodes, 0)
    for each in node_runs(session.end_profiling()):
        if each.node not in nodes:
            continue
        runs[each.node] += 1
        node = nodes[each.node]
        for names, told in ((node.input, each.inputs), (node.output, each.outputs)):
            given = [name for name in names if name]
            if len(given) > len(told):  # the profile of an inner graph leaves out weights
                given = [name for name in given if name not in stored]
            if len(given) == len(told):
                for tensor, (dtype, shape) in zip(given, told, strict=True):
                    known.setdefault(tensor, (_OF_PROFILE.get(dtype, dtype), tuple(shape)))
    return known, runs


def _whole(graph: onnx.GraphProto) -> Known:
    found: Known = {}
    for each in [*graph.input, *graph.value_info, *graph.output]:
        tensor = each.type.tensor_type
        if each.type.HasField("tensor_type") and tensor.HasField("shape") and tensor.elem_type:
            dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
            if -1 not in dims:
                found[each.name] = (_dtype(tensor.elem_type), tuple(dims))
    for tensor in graph.initializer:
        found[tensor.name] = (_dtype(tensor.data_type), tuple(tensor.dims))
    return found


def _dtype(element: int) -> str:
    return str(helper.tensor_dtype_to_np_dtype(element))


def _by_rule(node: onnx.NodeProto, known: Known) -> Known:
    """Shapes of a node's outputs if there is a rule for the operator and its input shapes are known; else empty."""
    first = known.get(node.input[0]) if node.input else None
    if first is None or all(not name or name in known for name in node.output):
        return {}
    dtype, shape = first
    numbers = {each.name: each.i for each in node.attribute if each.type == onnx.AttributeProto.INT}
    second = known.get(node.input[1]) if len(node.input) > 1 else None
    if node.op_type in LIKE_FIRST:
        found = {node.output[0]: first}
        if len(node.output) > 3 and node.output[3]:
            found[node.output[3]] = first  # the sum, an extra output of SkipLayerNormalization
        return found
    if node.op_type == "MatMulNBits":
        return {node.output[0]: (dtype, (*shape[:-1], numbers["N"]))}
    if node.op_type in ("MatMulIntegerToFloat", "DynamicQuantizeMatMul") and second is not None:
        return {node.output[0]: ("float32", (*shape[:-1], second[1][-1]))}
    if node.op_type == "GroupQueryAttention":
        heads, kv_heads = numbers["num_heads"], numbers["kv_num_heads"]
        size = shape[-1] // heads if node.input[1] else shape[-1] // (heads + 2 * kv_heads)
        found = {node.output[0]: (dtype, (*shape[:-1], heads * size))}
        past = known.get(node.input[3]) if len(node.input) > 3 else None
        length = shape[1] + (past[1][2] if past else 0)
        return found | {name: (dtype, (shape[0], kv_heads, length, size)) for name in node.output[1:3] if name}
    if node.op_type == "MultiHeadAttention" and second is not None and len(shape) == 3:
        value = known.get(node.input[2]) if len(node.input) > 2 else None
        return {node.output[0]: (dtype, (*shape[:2], value[1][-1] if value and len(value[1]) == 3 else shape[-1]))}
    if node.op_type == "Attention" and node.domain == "com.microsoft" and second is not None:
        return {node.output[0]: (dtype, (*shape[:2], second[1][-1] // 3))}
    return {}
