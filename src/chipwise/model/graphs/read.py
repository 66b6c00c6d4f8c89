"""Reads an ONNX file: fixes open axes, lets ONNX Runtime fuse operators, and counts each operator."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.core.extras import optional_imports
from chipwise.core.workers import Message, answer_of
from chipwise.errors import ChipwiseError, InputError, UnknownName, Unsupported, WorkerError, counted, line_of, listed
from chipwise.model.graphs.graph import CONTROL, UNNAMED, Graph, GraphInput, GraphOp, Shape

with optional_imports():
    import onnx
    from onnx import numpy_helper

    from chipwise.model.graphs.operators import all_nodes, inner_graphs, operator_of

Value: TypeAlias = "float | int | bool | Sequence[object] | AnyArray"

DOMAINS = {
    "", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc", "com.microsoft.experimental",
    "com.ms.internal.nhwc", "ai.onnx.training", "ai.onnx.preview", "ai.onnx.preview.training",
}  # fmt: skip
CHILD_S = 1800.0  # the child process is ended after this time


def model_inputs(path: str | Path) -> dict[str, tuple[str, tuple[int | str, ...]]]:
    """Maps each input to its dtype (numpy's name) and axes. Fixed axes are given as sizes, open axes as names.

    Raises:
        InputError: The file is missing, or not an ONNX model.
    """
    return {each.name: (str(each.dtype), each.shape) for each in stated_inputs(load(path).graph)}


def stated_inputs(graph: onnx.GraphProto) -> tuple[GraphInput, ...]:
    """The inputs that a user must provide, as the file declares them.

    Raises:
        Unsupported: An input is not a tensor.
    """
    stored = {each.name for each in graph.initializer}
    found = []
    for each in graph.input:
        if each.name in stored:
            continue
        if not each.type.HasField("tensor_type"):
            raise Unsupported(
                f"the input {each.name!r} is a {each.type.WhichOneof('value')}; chipwise supports only tensor inputs"
            )
        tensor = each.type.tensor_type
        axes = tuple(dim.dim_value if dim.dim_value > 0 else dim.dim_param or UNNAMED for dim in tensor.shape.dim)
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        found.append(GraphInput(name=each.name, dtype=dtype, shape=axes))
    return tuple(found)


def load(path: str | Path) -> onnx.ModelProto:
    """Loads the model in a file, without its external data.

    Raises:
        InputError: The file is missing or is not an ONNX model, or a file with its weights is missing.
        Unsupported: The model has operators that ONNX Runtime lacks.
    """
    try:
        model = onnx.load(str(path), load_external_data=False)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: this is a folder; name an ONNX file") from None
    except Exception as error:  # protobuf's errors and file errors have no common base class
        raise InputError(f"{path}: not an ONNX file, or a damaged one: {line_of(error)}") from None
    if not model.graph.node and not model.graph.output:
        raise InputError(f"{path}: not an ONNX file, or a damaged one: it contains no graph")
    folder = Path(path).parent
    for tensor in _tensors(model.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            place = next((each.value for each in tensor.external_data if each.key == "location"), "")
            if not (folder / place).is_file():
                raise InputError(
                    f"{path}: the weights of {tensor.name!r} are in {place!r}, which is not in the model's folder"
                )
    own = {each.domain for each in model.functions}
    for node in all_nodes(model.graph):
        if node.domain not in DOMAINS | own:
            raise Unsupported(
                f"{path}: node {node.name or node.op_type!r} is the custom operator {node.domain}:{node.op_type}, "
                "which ONNX Runtime does not have; replace it with standard operators when you export the model"
            )
    return model


def read_graph(
    path: str | Path,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, Value] | None = None,
    *,
    fixed_to: str | Path | None = None,
) -> Graph:
    """Reads an ONNX file as a list of operators, after ONNX Runtime has fused them.

    Args:
        path: The file; its external data must be in the same folder.
        shapes: Maps the name of an input with open axes to its shape, ``{"x": (1, 3, 48, 320)}``, or the name of an
            open axis to its size, ``{"side": (320,)}``. An open first axis (the batch) is 1 by default.
        values: Maps the name of an input to its constant value: ``{"sr": 16000}``. A single number fills the input's
            whole shape.
        fixed_to: A file to which the graph is written, with fixed axes and values and a unique name for each node.
            External data stay in the folder of ``path``.

    Raises:
        InputError: The file cannot be read, the size of an open axis is missing, or a shape or value does not fit.
        UnknownName: ``shapes`` contains a name that is neither an input nor an open axis, or ``values`` contains a name
            that is not an input.
        Unsupported: The graph has a custom operator, or ONNX Runtime cannot load it.
    """
    model = load(path)
    inputs, frozen = fix(model, path, shapes or {}, values or {})
    sources = _modules(model.graph)
    name_nodes(model)
    if fixed_to is not None:
        Path(fixed_to).write_bytes(model.SerializeToString())
    with tempfile.TemporaryDirectory(prefix="chipwise-") as folder:
        fixed = Path(folder) / "fixed.onnx"
        fixed.write_bytes(model.SerializeToString())
        found = _child(path, fixed)
        fused = onnx.load(str(Path(folder) / found["file"]), load_external_data=False)
    known: dict[str, tuple[str, Shape]] = {
        name: (dtype, tuple(shape)) for name, (dtype, shape) in found["shapes"].items()
    }
    ops = tuple(_operators(fused.graph, known, found["runs"], sources))
    weights = [each for each in _tensors(model.graph) if each.name not in frozen]
    notes = list(found["notes"])
    if unknown := [op for op in ops if op.flops is None]:
        names = listed(sorted({f"{op.op_type} {op.name}" for op in unknown}))
        notes.append(
            f"the FLOPs and bytes of {counted(len(unknown), 'operator')} are unknown and left out of all sums: {names}"
        )
    return Graph(
        path=str(path),
        inputs=inputs,
        outputs=tuple(each.name for each in model.graph.output),
        values=frozen,
        ops=ops,
        opset=max((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), default=0),
        parameters=sum(math.prod(each.dims) for each in weights),
        weight_bytes=sum(tensor_bytes(each) for each in weights),
        dtype=_main_dtype(ops),
        notes=tuple(notes),
    )


def fix(
    model: onnx.ModelProto, path: str | Path, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Value]
) -> tuple[tuple[GraphInput, ...], dict[str, object]]:
    """Fixes the axes of ``model`` in place, and turns inputs with values into constants.

    Returns:
        The inputs that remain, and a mapping from the names of the inputs that became constants to their values.
    """
    stated = {each.name: each for each in stated_inputs(model.graph)}
    axes = {axis for each in stated.values() for axis in each.shape if isinstance(axis, str)} - {UNNAMED}
    for name in values:
        if name not in stated:
            raise UnknownName(f"input of {path}", name, stated)
    sizes: dict[int | str, int] = {}
    for name, given in shapes.items():
        if name not in stated and name not in axes:
            raise UnknownName(f"input or axis of {path}", name, [*stated, *sorted(axes)])
        if any(not isinstance(size, int) or size < 0 for size in given):
            raise InputError(f"{path}: --shape {name}: sizes must be whole numbers of at least 0, not {list(given)}")
        if name not in stated:
            if len(given) != 1:
                raise InputError(f"{path}: --shape {name}: this is one axis, so give one number, not {list(given)}")
            sizes[name] = given[0]
            continue
        shape = stated[name].shape
        if len(given) != len(shape):
            raise InputError(
                f"{path}: --shape {name} has {len(given)} axes, but the input has {len(shape)}: {_axes(shape)}"
            )
        for axis, size in zip(shape, given, strict=True):
            if isinstance(axis, int) and axis != size:
                raise InputError(
                    f"{path}: --shape {name}: a fixed axis of {axis} cannot be {size}; the input is {_axes(shape)}"
                )
            if axis in axes and sizes.setdefault(axis, size) != size:
                raise InputError(f"{path}: the axis {axis!r} is given as {sizes[axis]} and as {size}; give one size")
    fixed: dict[str, tuple[int, ...]] = {}
    open_inputs = []
    for name, each in stated.items():
        given = tuple(shapes.get(name, ()))
        full = given or tuple(
            axis if isinstance(axis, int) else sizes.get(axis, 1 if not place else -1)
            for place, axis in enumerate(each.shape)
        )
        fixed[name] = full
        if -1 in full and name not in values:
            open_inputs.append(f"{name} ({_axes(each.shape)})")
    if open_inputs:
        example = next(name for name in stated if -1 in fixed[name] and name not in values)
        raise InputError(
            f"{path}: these inputs have open (dynamic) axes: {'; '.join(open_inputs)}; give sizes, such as --shape "
            f"{example}={','.join(str(size if size > 0 else 1) for size in fixed[example])} (or give an input a "
            "constant value with --value)"
        )
    frozen: dict[str, object] = {}
    left = []
    for place in reversed(range(len(model.graph.input))):
        item = model.graph.input[place]
        if item.name not in stated:
            continue
        dtype = stated[item.name].dtype
        if item.name in values:
            array = _array(path, item.name, values[item.name], dtype, fixed[item.name])
            model.graph.initializer.append(numpy_helper.from_array(array, item.name))
            frozen[item.name] = values[item.name]
            del model.graph.input[place]
            continue
        dims = item.type.tensor_type.shape.dim
        del dims[:]
        for size in fixed[item.name]:
            dims.add().dim_value = size
        left.append(replace(stated[item.name], shape=fixed[item.name]))
    del model.graph.value_info[:]  # its sizes of open axes would contradict the fixed ones
    for output in model.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    return tuple(reversed(left)), frozen


def name_nodes(model: onnx.ModelProto) -> None:
    """Gives each node of the model a unique name."""
    seen: set[str] = set()
    for place, node in enumerate(all_nodes(model.graph)):
        if not node.name or node.name in seen:
            node.name = f"{node.name or node.op_type}#{place}"
        seen.add(node.name)


def tensor_bytes(tensor: onnx.TensorProto) -> int:
    """Size of a stored tensor in bytes."""
    count: int = math.prod(tensor.dims)
    return -(-count * bits(tensor.data_type) // 8)


def bits(data_type: int) -> int:
    """Number of bits per value of an ONNX data type; a string counts as 64."""
    name = onnx.TensorProto.DataType.Name(data_type)
    if name in ("INT4", "UINT4", "FLOAT4E2M1"):
        return 4
    if name in ("INT2", "UINT2"):
        return 2
    if name == "STRING":
        return 64
    width: int = 8 * onnx.helper.tensor_dtype_to_np_dtype(data_type).itemsize
    return width


def _operators(
    graph: onnx.GraphProto, known: dict[str, tuple[str, Shape]], runs: Mapping[str, int], sources: Mapping[str, str]
) -> Iterator[GraphOp]:
    stored = {each.name: each for each in _tensors(graph)}
    for node in all_nodes(graph):
        times = runs.get(node.name, 0) if runs else 1
        if node.op_type in CONTROL and runs:
            continue  # the operators inside it are listed instead
        if times == 0 or node.op_type == "Constant":
            continue
        module = next((sources[name] for name in node.output if name in sources), "")
        yield operator_of(node, known, stored, runs=times, module=module)


def _child(path: str | Path, fixed: Path) -> Message:
    """Runs :mod:`chipwise.model.graphs.fuse`; tries again with fewer optimisations if the runtime fails or crashes."""
    complaint = ""
    for level in ("extended", "basic", "none"):
        job = {"file": str(fixed), "folder": str(Path(path).absolute().parent), "level": level}
        try:
            found = answer_of("chipwise.model.graphs.fuse", job, timeout_s=CHILD_S, name="child process")
        except ChipwiseError as error:
            if isinstance(error, WorkerError) and error.ended_with is None:
                raise Unsupported(f"{path}: ONNX Runtime could not fuse operators: {line_of(error)}") from None
            complaint = complaint or line_of(error)
            continue
        if level != "extended":
            found["notes"].append(f"ONNX Runtime could not fuse operators ({complaint}); they are counted unfused")
        return found
    raise Unsupported(f"{path}: ONNX Runtime cannot load this model: {complaint}")


def _array(path: str | Path, name: str, value: Value, dtype: np.dtype[np.generic], shape: Sequence[int]) -> AnyArray:
    """``value`` as an array of the input's type; a single number fills the whole shape."""
    try:
        array = np.asarray(value).astype(dtype)
    except (ValueError, TypeError):
        raise InputError(f"{path}: --value {name}: the value must be of type {dtype}, not {value!r}") from None
    if array.ndim == 0 and -1 not in shape:
        return np.full(tuple(shape), array, dtype)
    if array.ndim != len(shape) or any(size not in (-1, given) for size, given in zip(shape, array.shape, strict=True)):
        said = ", ".join("?" if size < 0 else str(size) for size in shape)
        raise InputError(f"{path}: --value {name} has the shape {array.shape}, but the input's shape is ({said})")
    return array


def _modules(graph: onnx.GraphProto) -> dict[str, str]:
    """The path of the torch module that made each tensor, from the exporter's metadata or the node's name."""
    found = {}
    for node in all_nodes(graph):
        told = next((each.value for each in node.metadata_props if each.key == "pkg.torch.onnx.name_scopes"), "")
        scopes = [each.strip(" '[]") for each in told.split(",")]
        path = scopes[-2] if len(scopes) > 1 else node.name.strip("/").rpartition("/")[0].replace("/", ".")
        for name in node.output:
            found[name] = path
    return found


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """All stored tensors, including those in Constant nodes and inner graphs. A constant has its output's name."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.type == onnx.AttributeProto.TENSOR:
                tensor = onnx.TensorProto()
                tensor.CopyFrom(attribute.t)
                tensor.name = node.output[0]
                yield tensor
        for inner in inner_graphs(node):
            yield from _tensors(inner)


def _axes(shape: Sequence[int | str]) -> str:
    return ", ".join(map(str, shape)) or "a single number"


def _main_dtype(ops: Sequence[GraphOp]) -> str:
    """The number format in which most FLOPs are computed."""
    flops: Counter[str] = Counter()
    for op in ops:
        flops[op.dtype] += (op.flops or 0) * op.runs
    return flops.most_common(1)[0][0] if flops else "fp32"
