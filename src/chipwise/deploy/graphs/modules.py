"""PyTorch modules as ONNX files, so that they are measured and quantised like any other graph."""

from __future__ import annotations

import contextlib
import inspect
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.core.extras import require
from chipwise.deploy.graphs.inputs import Feed, write_arrays
from chipwise.errors import InputError, SpecError

OPSET = 17


@runtime_checkable
class Module(Protocol):
    """A PyTorch module (``torch.nn.Module``)."""

    training: bool

    def forward(self, *inputs: object) -> object:
        """The outputs."""
        ...

    def train(self, mode: bool = ...) -> object:
        """Switches between training and evaluation."""
        ...


@contextlib.contextmanager
def on_disk(
    model: str | Path | Module, inputs: Sequence[object] | None, data: str | Path | Mapping[str, AnyArray] | None
) -> Iterator[tuple[Path, Path]]:
    """The paths of a model's file and of its data; what is no file is written to a temporary folder.

    Args:
        model: An ONNX file, or a module.
        inputs: Examples of a module's inputs, by whose shapes it is traced; without ``data`` they are the data.
        data: A file of data, or arrays by the names of inputs.

    Raises:
        InputError: torch cannot export the module, or ``inputs`` do not belong to a file.
    """
    with tempfile.TemporaryDirectory() as room:
        path = Path(model) if isinstance(model, str | Path) else Path(room) / f"{type(model).__name__}.onnx"
        given = data
        if not isinstance(model, str | Path):
            if inputs is None:
                raise InputError("inputs: a PyTorch module is traced on examples; give inputs=(x,)")
            feed = export_module(model, inputs, path)
            given = feed if data is None else data
        elif inputs is not None or given is None:
            raise InputError(f"inputs: only apply to PyTorch modules; {model} is a file, so give a .npz file")
        if not isinstance(given, Mapping):
            yield path, Path(given)
            return
        arrays = Path(room) / "data.npz"
        write_arrays(arrays, {name: np.asarray(array) for name, array in given.items()})
        yield path, arrays


def export_module(module: Module, inputs: Sequence[object], path: Path) -> Feed:
    """Writes a module as an ONNX file for inputs of these shapes; returns them by the names of its arguments.

    Raises:
        InputError: torch cannot export it.
        MissingExtra: torch is not installed.
    """
    require("torch")
    require("onnx")
    import torch

    names = [name for name in inspect.signature(module.forward).parameters if name != "self"][: len(inputs)]
    if not inputs or len(names) < len(inputs):
        raise SpecError(f"{type(module).__name__} takes {len(names)} inputs, not {len(inputs)}", field="inputs")
    tensors = tuple(item if isinstance(item, torch.Tensor) else torch.as_tensor(np.asarray(item)) for item in inputs)
    was_training, fast = module.training, torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # an operator of its own, which ONNX lacks
    try:
        module.train(False)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            export: Callable[..., object] = torch.onnx.export
            export(module, tensors, str(path), input_names=names, opset_version=OPSET, dynamo=False)
    except Exception as error:  # torch raises errors of many kinds
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"{type(module).__name__} cannot be exported to ONNX: {reason}") from error
    finally:
        module.train(was_training)
        torch.backends.mha.set_fastpath_enabled(fast)
    return {name: tensor.detach().cpu().numpy() for name, tensor in zip(names, tensors, strict=True)}
