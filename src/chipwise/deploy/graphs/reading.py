"""Reads what an ONNX file asks of its user. This executes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from chipwise.deploy.graphs.inputs import GraphInput
from chipwise.errors import MissingExtra, SpecError, Unsupported

try:
    import onnx
except ImportError:  # pragma: no cover - depends on what is installed
    raise MissingExtra("onnx", "search") from None

PASSED_ON = {"Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten"}  # indices stay indices behind these
MOST_ROWS = 2**31


def inputs_of(path: str | Path) -> tuple[GraphInput, ...]:
    """The inputs that a user of the ONNX file at ``path`` must give.

    Raises:
        SpecError: The file is missing or not an ONNX graph, or a file of its weights is missing.
        Unsupported: An input is not a tensor.
        MissingExtra: onnx is not installed.
    """
    name, file = str(path), Path(path)
    if not file.is_file():
        raise SpecError("there is no such file" if not file.exists() else "this is not a file", file=name)
    try:
        graph = onnx.load(name, load_external_data=False).graph
    except Exception:  # protobuf's error, or that of an unknown format
        graph = onnx.GraphProto()
    if not graph.node:
        raise SpecError("is not an ONNX file, or is damaged; export or copy it again", file=name)
    for tensor in graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location" and not (file.parent / entry.value).is_file():
                raise SpecError(f"its weights are in {entry.value}, which is missing next to it", file=name)
    stored = {tensor.name for tensor in graph.initializer}
    rows = dict(_indexed_rows(graph))
    found = []
    for item in graph.input:
        if item.name in stored:
            continue
        tensor_type = item.type.tensor_type
        if not tensor_type.elem_type:
            raise Unsupported(f"{name}: its input {item.name!r} is no tensor; chipwise runs graphs with tensors alone")
        axes = tuple(axis.dim_param or (axis.dim_value or "?") for axis in tensor_type.shape.dim)
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor_type.elem_type))
        found.append(GraphInput(name=item.name, dtype=dtype, shape=axes, rows=rows.get(item.name)))
    return tuple(found)


def _indexed_rows(graph: onnx.GraphProto) -> Iterator[tuple[str, int]]:
    """Inputs that choose rows of stored tables, each with the rows of its smallest table."""
    sizes = {tensor.name: tensor.dims[0] for tensor in graph.initializer if tensor.dims}
    source = {item.name: item.name for item in graph.input}
    least: dict[str, int] = {}
    for node in graph.node:  # in the order of computation
        if node.op_type in PASSED_ON and node.input and node.input[0] in source:
            source[node.output[0]] = source[node.input[0]]
        if node.op_type == "Gather" and node.input[1] in source and node.input[0] in sizes:
            name = source[node.input[1]]
            least[name] = min(least.get(name, MOST_ROWS), sizes[node.input[0]])
    yield from least.items()
