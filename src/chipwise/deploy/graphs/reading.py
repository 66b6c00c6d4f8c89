"""Reads from an ONNX file, without running it, which inputs the user must give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from chipwise.core.extras import require
from chipwise.deploy.graphs.inputs import Feed, Shapes, given_feed, made_feed, with_shapes
from chipwise.deploy.runtimes import TEXT_INPUTS, TEXT_PAST
from chipwise.errors import InputError, SpecError, Unsupported
from chipwise.model import graphs
from chipwise.model.graphs.graph import GraphInput

if TYPE_CHECKING:
    import onnx

# Operators whose output is still indices.
PASSED_ON = {"Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten"}
MOST_ROWS = 2**31


def inputs_of(path: str | Path) -> tuple[GraphInput, ...]:
    """The inputs that a user of the ONNX file at ``path`` must give.

    Raises:
        SpecError: The file is missing or not an ONNX graph, or a file of its weights is missing.
        Unsupported: An input is not a tensor.
        MissingExtra: onnx is not installed.
    """
    graph = _loaded(path).graph
    for file in external_files(path):
        if not file.is_file():
            raise SpecError(f"its weights are in {file.name}, which is missing next to it", file=str(path))
    stored = {tensor.name for tensor in graph.initializer}
    for item in graph.input:
        if item.name not in stored and not item.type.tensor_type.elem_type:
            raise Unsupported(f"{path}: its input {item.name!r} is not a tensor; chipwise only runs graphs on tensors")
    rows = dict(_indexed_rows(graph))
    return tuple(replace(item, rows=rows.get(item.name)) for item in graphs.stated_inputs(graph))


def _indexed_rows(graph: onnx.GraphProto) -> Iterator[tuple[str, int]]:
    """Inputs that hold row indices of stored tables, such as the token ids of an embedding.

    Each comes with the number of rows of the smallest table that it indexes.
    """
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


def _loaded(path: str | Path) -> onnx.ModelProto:
    """Loads the graph, without weights that are stored in other files.

    Raises:
        SpecError: The file is missing or not an ONNX graph.
        MissingExtra: onnx is not installed.
    """
    require("onnx")
    import onnx

    name, file = str(path), Path(path)
    if not file.is_file():
        raise SpecError("there is no such file" if not file.exists() else "this is not a file", file=name)
    try:
        model = onnx.load(name, load_external_data=False)
    except Exception:  # protobuf's error, or that of an unknown format
        model = onnx.ModelProto()
    if not model.graph.node:
        raise SpecError("not an ONNX file, or a damaged one; export or copy it again", file=name)
    return model


def external_files(path: str | Path) -> list[Path]:
    """Files next to the ONNX file at ``path`` that hold its weights; they may be missing.

    Raises:
        SpecError: The file is missing or not an ONNX graph, or names a file outside its folder.
    """
    tensors = _loaded(path).graph.initializer
    names = {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    for name in names:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise SpecError(f"its weights are in {name}, outside its folder; export it again", file=str(path))
    return [Path(path).parent / name for name in sorted(names)]


def needs_feed(path: str | Path) -> bool:
    """Whether an ONNX file has inputs that are neither those of chipwise's exports nor those of text models."""
    if any(item.key == "chipwise" for item in _loaded(path).metadata_props):
        return False
    names = [item.name for item in inputs_of(path)]
    return not all(name in TEXT_INPUTS or name.startswith(TEXT_PAST) for name in names)


def feed_for(
    path: str | Path, shapes: Shapes, values: Mapping[str, float], data: str | Path | None, *, seed: int = 0
) -> Feed:
    """Returns data for one pass of the ONNX file at ``path``: from the ``.npz`` file ``data`` if given, else random.

    Raises:
        InputError: The file or the data are wrong, or an open axis has no size.
    """
    inputs = with_shapes(path, inputs_of(path), shapes)
    if not inputs:
        raise InputError(f"{path}: the graph has no inputs, so there is nothing to measure")
    if data is not None:
        return given_feed(path, inputs, data, values)
    return made_feed(path, inputs, shapes, values, seed=seed)
