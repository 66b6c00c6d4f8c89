"""Splits the grouped products of an ONNX graph into single products, to measure what grouping saves.

A grouped product is a MatMul with a three-dimensional constant (one matrix for each expert), or a Conv with several
groups. Here each becomes a Split, a product for each group, and a Concat. If every group reads the whole input, there
is no Split. The outputs stay the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

MOST_GROUPS = 64  # depthwise convolutions have hundreds of groups, which no runtime computes one by one


def write_separate(path: str | Path, out: str | Path) -> int:
    """Splits grouped products of the graph at ``path`` into single ones; writes ``out`` only if there are any.

    Products in subgraphs, with weights that are not constants of the file, or with more than ``MOST_GROUPS`` groups
    are not split.

    Returns:
        Number of grouped products that were separated.
    """
    model = onnx.load(str(path), load_external_data=False)
    weights = {item.name: item for item in model.graph.initializer}
    if any(item.data_location == onnx.TensorProto.EXTERNAL for item in weights.values()):
        return 0
    if not any(_groups(node, weights) for node in model.graph.node):
        return 0
    model = onnx.shape_inference.infer_shapes(model)
    shapes = {
        item.name: [axis.dim_value for axis in item.type.tensor_type.shape.dim]
        for item in (*model.graph.input, *model.graph.value_info)
    }
    opset = max(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
    nodes: list[onnx.NodeProto] = []
    found = 0
    for node in model.graph.node:
        groups = _groups(node, weights)
        axis = _axis(node, shapes.get(node.input[0], []), groups) if groups else None
        if axis is None:
            nodes.append(node)
            continue
        found += 1
        made = f"{node.output[0]}/separate"
        each = [f"{made}/{i}" for i in range(groups)]
        inputs = [f"{name}/in" for name in each] if axis else [node.input[0]] * groups
        if axis:
            equal = {"num_outputs": groups} if opset >= 18 else {}
            nodes.append(helper.make_node("Split", [node.input[0]], inputs, name=f"{made}/split", axis=axis, **equal))
        parts = [np.split(numpy_helper.to_array(weights[name]), groups) for name in node.input[1:]]
        for i, name in enumerate(each):
            constants = [f"{name}/{k}" for k in range(len(parts))]
            model.graph.initializer.extend(
                numpy_helper.from_array(part[i], constant) for part, constant in zip(parts, constants, strict=True)
            )
            nodes.append(_alone(node, [inputs[i], *constants], name))
        nodes.append(helper.make_node("Concat", each, [node.output[0]], name=f"{made}/joined", axis=axis or -3))
    if found:
        used = {name for node in nodes for name in node.input}
        kept = [item for item in model.graph.initializer if item.name in used]
        del model.graph.node[:], model.graph.initializer[:]
        model.graph.node.extend(nodes)
        model.graph.initializer.extend(kept)
        onnx.save(model, str(out))
    return found


def _groups(node: onnx.NodeProto, weights: Mapping[str, onnx.TensorProto]) -> int:
    """Number of products in a grouped product; 0 for other nodes, and if the node cannot be separated."""
    groups = 0
    if node.op_type in ("Conv", "MatMul") and all(name in weights for name in node.input[1:]):
        dims = weights[node.input[1]].dims
        if node.op_type == "Conv":
            groups = next((item.i for item in node.attribute if item.name == "group"), 1)
        elif len(dims) == 3:
            groups = dims[0]
    return groups if 1 < groups <= MOST_GROUPS else 0


def _axis(node: onnx.NodeProto, shape: list[int], groups: int) -> int | None:
    """Axis along which the input is split; 0 if each product reads the whole input; None if the shape does not fit."""
    if node.op_type == "Conv":
        return 1
    if len(shape) == 2:
        return 0
    return -3 if len(shape) > 2 and shape[-3] == groups else None


def _alone(node: onnx.NodeProto, inputs: list[str], output: str) -> onnx.NodeProto:
    """The product of one group."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    del made.input[:], made.output[:]
    made.input.extend(inputs)
    made.output.append(output)
    made.name = output
    for item in made.attribute:
        if item.name == "group":
            item.i = 1
    return made
