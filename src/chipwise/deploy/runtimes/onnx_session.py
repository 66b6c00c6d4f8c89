"""ONNX Runtime sessions with the options for measuring and serving, and the metadata of files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from chipwise.core.arrays import AnyArray
from chipwise.deploy.runtimes import Facts
from chipwise.errors import MeasurementError, MissingExtra

try:
    import onnxruntime as ort
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise MissingExtra("onnxruntime", "search") from error


Loaded: TypeAlias = tuple[ort.InferenceSession, Facts]


def session_options(threads: int) -> ort.SessionOptions:
    """Session options, the same for measuring and serving.

    Idle threads sleep, no memory is allocated in advance, and the graph is not changed by optimisations.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    return options


def load(path: str | Path) -> Loaded:
    """A single-threaded session for a file that chipwise wrote, and the file's metadata.

    Raises:
        MeasurementError: The file is not one that chipwise wrote, or the runtime refuses it.
    """
    session = open_file(path, session_options(1))
    facts = metadata_of(session)
    if facts is None:
        raise MeasurementError(f"{path}: this ONNX file has no chipwise metadata; export it again")
    return session, facts


def open_file(path: str | Path | bytes, settings: ort.SessionOptions, *, name: str = "") -> ort.InferenceSession:
    """Opens a model as a session; ``path`` is its file, or the content of the file called ``name``.

    Raises:
        MeasurementError: The runtime refuses the file.
    """
    source = path if isinstance(path, bytes) else str(path)
    try:
        return ort.InferenceSession(source, settings, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise MeasurementError(f"{name or str(path)}: ONNX Runtime cannot load this model: {error}") from None


def bound(
    session: ort.InferenceSession, inputs: Mapping[str, AnyArray], outputs: Mapping[str, AnyArray]
) -> ort.IOBinding:
    """All inputs and outputs bound to these arrays, which the caller keeps alive and may change in place."""
    binding = session.io_binding()
    for arrays, bind in ((inputs, binding.bind_input), (outputs, binding.bind_output)):
        for name, value in arrays.items():
            bind(name, "cpu", 0, value.dtype, value.shape, value.ctypes.data)
    return binding


def metadata_of(session: ort.InferenceSession) -> Facts | None:
    """The file's metadata, if chipwise wrote it."""
    text = session.get_modelmeta().custom_metadata_map.get("chipwise")
    found: Facts | None = None if text is None else json.loads(text)
    return found
