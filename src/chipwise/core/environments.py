"""Separate Python environments for packages whose pinned versions conflict with those of chipwise.

This module installs nothing: :func:`install_command` returns the command to run. In such an environment, chipwise runs
one of its modules as a child process, which receives jobs through :func:`chipwise.core.workers.serve`.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from chipwise.core.places import cache_folder
from chipwise.core.workers import ONE_THREAD, Message, WorkerPool
from chipwise.errors import MeasurementError, Unreachable, WorkerError

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "executorch": ("executorch==1.5.1", "torch==2.13.0", "safetensors", "psutil"),
    "tvm": (
        *("apache-tvm==0.27.0.post1", "apache-tvm-ffi==0.1.14.post0", "onnx==1.23.2", "onnxruntime==1.31.1"),
        *("cloudpickle", "psutil", "pyyaml", "scipy", "tornado", "xgboost"),
    ),
    "coreml": ("coremltools==9.0", "torch==2.7.0", "numpy==2.3.5", "safetensors"),
    "litert": (
        *("litert-torch==0.10.0", "litert-converter==0.5.0", "ai-edge-litert==2.3.0", "ai-edge-quantizer==0.10.0"),
        *("torch==2.13.0", "torchao==0.18.0", "jax==0.10.2", "transformers==5.24.0", "safetensors", "psutil"),
    ),
}
"""The packages to install in each environment."""
SILENCE_S = 900.0  # a program with a job counts as hung after this long without a message


def variable(name: str) -> str:
    """The environment variable in which a user may name the Python interpreter for the environment ``name``.

    >>> variable("executorch")
    'CHIPWISE_EXECUTORCH'
    """
    return f"CHIPWISE_{name.upper()}"


def python_of(name: str) -> Path | None:
    """The Python interpreter of an environment; None if there is no such interpreter.

    The environment variable (:func:`variable`) may name the interpreter or the environment's folder. If it is not set,
    the environment is looked for in the cache folder.
    """
    own = os.environ.get(variable(name))
    place = Path(own) if own else cache_folder() / name
    python = place / "bin" / "python" if place.is_dir() else place
    return python.absolute() if os.access(python, os.X_OK) else None


def install_command(name: str) -> str:
    """The shell command that creates the environment in the place where :func:`python_of` looks for it."""
    folder = shlex.quote(str(cache_folder() / name))
    return f"python3 -m venv {folder} && {folder}/bin/pip install {' '.join(PACKAGES[name])}"


def lacking(name: str) -> str | None:
    """A message that says why an environment cannot be used, and what to do; None if it can be used."""
    if python_of(name) is not None:
        return None
    own = os.environ.get(variable(name))
    why = f"{variable(name)} names {own}, not a Python program" if own else "it needs a Python environment of its own"
    return f"{why}; create one with: {install_command(name)}"


class Program:
    """A module of chipwise that runs as a program in a separate environment, until this process ends."""

    def __init__(self, environment: str, python: Path, module: str, *, threads: int) -> None:
        self._name = environment
        self._pool = WorkerPool(
            [str(python), "-I", str(Path(__file__).with_name("run_module.py")), module],
            1,
            name=f"{environment} process",
            silence_s=SILENCE_S,
            environment={**ONE_THREAD, "OMP_NUM_THREADS": str(threads)},
        )

    def ask(
        self, do: str, on_progress: Callable[[Message], None] = lambda told: None, /, **fields: object
    ) -> Mapping[str, object]:
        """Sends one job, calls ``on_progress`` with each of its progress messages, and returns its result.

        Raises:
            MeasurementError: The job failed, or the program died or cannot start.
        """
        try:
            self._pool.submit({"do": do, **fields})
            for found in self._pool.events():
                if found.kind != "progress":
                    break
                on_progress(found.data)
        except WorkerError as error:
            raise MeasurementError(f"{self._name}: {error}") from None
        if found.kind == "failed":
            raise MeasurementError(f"{self._name}: {found.data['message']}")
        answer: Mapping[str, object] = found.data
        return answer


_started: dict[tuple[Path, str, int], Program] = {}


def program(environment: str, module: str, *, threads: int = 1) -> Program:
    """The running program ``module`` in an environment. The first call starts it; later calls return the same program.

    Raises:
        Unreachable: There is no such environment.
    """
    python = python_of(environment)
    if python is None:
        raise Unreachable(f"{environment}: {lacking(environment)}")
    key = (python, module, threads)
    if key not in _started:
        _started[key] = Program(environment, python, module, threads=threads)
    return _started[key]
