"""A user's model as an ONNX file: the file itself, or a PyTorch module that is exported to a temporary one."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeGuard, runtime_checkable

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.core.extras import require
from chipwise.core.python_files import is_name
from chipwise.deploy import graphs
from chipwise.deploy.graphs.inputs import Shapes, write_arrays
from chipwise.errors import InputError

Inputs = Sequence[object] | Mapping[str, object]
"""Examples of a module's inputs: its arguments in order, or by name."""


@runtime_checkable
class Module(Protocol):
    """A PyTorch module (``torch.nn.Module``)."""

    training: bool

    def forward(self, *inputs: object) -> object:
        """Returns the module's outputs."""
        ...

    def train(self, mode: bool = ...) -> object:
        """Switches between training and evaluation."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A model as an ONNX file, with the data, shapes and values that its inputs still need.

    Attributes:
        path: The file.
        name: What the user calls the model.
        data: A ``.npz`` file with data for its inputs.
        shapes: Shapes of inputs that have open (dynamic) axes.
        values: Inputs that are fixed to a value.
    """

    path: Path
    name: str
    data: Path | None
    shapes: Shapes
    values: Mapping[str, float]


def is_module(model: object) -> TypeGuard[str | Module]:
    """Whether ``model`` is a PyTorch module, or the name of one: ``package.module:name`` or ``file.py:name``."""
    return isinstance(model, Module) or (isinstance(model, str) and is_name(model))


def name_of(model: object) -> str:
    """The name of a model in messages: its file, the given name, or the class of a module."""
    return str(model) if isinstance(model, str | Path) else type(model).__name__


@contextlib.contextmanager
def on_disk(
    model: object,
    *,
    inputs: str | Path | Inputs | None = None,
    data: str | Path | Mapping[str, AnyArray] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, float] | None = None,
) -> Iterator[ModelFile]:
    """Yields the model as a file; a module, or data given as arrays, is first written to a temporary folder.

    Args:
        model: An ONNX file, a module, or the name of one, which is imported.
        inputs: Example inputs. For a module: arrays or a ``.npz`` file; the inputs of the exported file get the shapes
            of these arrays. For a file: only a ``.npz`` file.
        data: A file of data, or a mapping from inputs to arrays. Default: ``inputs``.
        shapes: For a file: shapes of inputs that have open (dynamic) axes. For a module: shapes of its inputs, if
            ``inputs`` is not given.
        values: Inputs that are fixed to a value.

    Raises:
        InputError: The module cannot be imported, run on these inputs or exported, or ``inputs`` do not fit the model.
    """
    given = {name: tuple(shape) for name, shape in (shapes or {}).items()}
    with tempfile.TemporaryDirectory(prefix="chipwise-") as room:
        if is_module(model):
            require("torch")
            require("onnx")
            name, path, feed, fixed = graphs.exported(
                model, Path(room), inputs=inputs, shapes=given, values=values or {}
            )
            data = feed if data is None and inputs is not None else data
            given = {}
        elif not isinstance(model, str | Path) or not isinstance(inputs, str | Path | None):
            raise InputError(
                f"inputs: {model} is a file, so give its inputs as the path of a .npz file, and the sizes of open "
                "(dynamic) axes as `shapes`"
            )
        else:
            name, path, fixed = str(model), Path(model), dict(values or {})
            data = inputs if data is None else data
        if isinstance(data, Mapping):
            arrays = Path(room) / "data.npz"
            write_arrays(arrays, {each: np.asarray(array) for each, array in data.items()})
            data = arrays
        yield ModelFile(path=path, name=name, data=None if data is None else Path(data), shapes=given, values=fixed)
