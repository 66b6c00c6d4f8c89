"""A child process that lets ONNX Runtime fuse the operators of a graph, and that infers the tensors' shapes.

The runtime may crash on odd graphs, so this code runs in a separate process, which is started by
:func:`chipwise.core.workers.answer_of`.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from chipwise.core.workers import Message, answer_once
from chipwise.errors import Unsupported, line_of
from chipwise.model.graphs.graph import GraphInput
from chipwise.model.graphs.operators import all_nodes
from chipwise.model.graphs.shapes import Known, infer, run, unresolved

LEVELS = {
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
}
INLINE_BYTES = 4096  # larger constants go to a file, so that graphs of any size can be read


def answer(job: Message) -> Mapping[str, object]:
    """Answers one request of the parent process: calls :func:`fused` with the request's fields.

    Raises:
        Unsupported: The runtime refuses the graph.
    """
    try:
        return fused(Path(job["file"]), folder=job["folder"], level=job["level"])
    except Exception as error:  # the runtime's errors have no common base class
        raise Unsupported(line_of(traceback.format_exception_only(error)[-1], -1)) from None


def fused(file: Path, *, folder: str, level: str) -> dict[str, object]:
    """Fuses the graph in ``file``, whose external data are in ``folder``.

    Returns:
        ``file``: name of the fused graph's file, in the folder of the argument ``file``. ``shapes``: type and shape of
        each tensor. ``runs``: how often each node ran, if shapes had to be found by running the graph. ``notes``:
        notes on tensor sizes that shape inference did not find.
    """
    known: Known = {}
    result = file
    notes = []
    if level != "none":
        result = _optimised(file, folder, "basic")
        basic = onnx.load(str(result), load_external_data=False)
        known = infer(basic, {})
        if level == "extended":
            result = _optimised(file, folder, "extended")
    model = onnx.load(str(result), load_external_data=False)
    tensors = {name for node in model.graph.node for name in [*node.input, *node.output]}
    known = {name: each for name, each in known.items() if name in tensors}
    _name_nodes(model)
    named = result.with_name("named.onnx")
    named.write_bytes(model.SerializeToString())
    known = infer(model, known)
    runs: dict[str, int] = {}
    if left := unresolved(model.graph, known):
        inputs = [
            GraphInput(name=each.name, dtype=np.dtype(known[each.name][0]), shape=known[each.name][1])
            for each in model.graph.input
        ]
        try:
            seen, runs = run(named, inputs)
            known = seen | known
            notes.append("some tensor sizes depend on the input data; these sizes are from a run with random inputs")
        except Exception as error:  # the runtime's errors have no common base class
            notes.append(
                f"the sizes of {len(left)} operators are unknown; a run with random inputs failed: {line_of(error)}"
            )
    return {"file": named.name, "shapes": known, "runs": runs, "notes": notes}


def _optimised(file: Path, folder: str, level: str) -> Path:
    """Saves the runtime's optimised graph next to ``file``, and large constants in another file; returns its path."""
    result = file.with_name(f"{level}.onnx")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = LEVELS[level]
    options.optimized_model_filepath = str(result)
    for key, value in (
        ("model_external_initializers_file_folder_path", folder),
        ("optimized_model_external_initializers_file_name", f"{level}.weights"),
        ("optimized_model_external_initializers_min_size_in_bytes", str(INLINE_BYTES)),
    ):
        options.add_session_config_entry(f"session.{key}", value)
    ort.InferenceSession(file.read_bytes(), options, providers=["CPUExecutionProvider"])
    return result


def _name_nodes(model: onnx.ModelProto) -> None:
    for place, node in enumerate(all_nodes(model.graph)):
        node.name = f"{node.name or node.op_type}#{place}"


if __name__ == "__main__":
    os._exit(answer_once(answer))  # skips the runtime's own shutdown
