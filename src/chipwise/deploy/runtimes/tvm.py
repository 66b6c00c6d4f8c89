"""TVM on the CPU for graphs of ONNX's own operators, in a separate Python environment (``core/environments.py``).

The program ``tvm_program.py`` tunes, compiles and runs graphs in that environment. Tuning
(``design/models/compiling.py``) comes before a measurement: it tries schedules of each kernel by running them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.core.digest import plain
from chipwise.core.environments import program
from chipwise.deploy.graphs.inputs import read_arrays
from chipwise.deploy.runtimes import Facts, SinglePass, Timed
from chipwise.errors import MeasurementError

ENVIRONMENT, MODULE = "tvm", "chipwise.deploy.runtimes.tvm_program"
TOGETHER_S, MOST_PASSES = 0.05, 50  # seconds of passes between two messages, about


class TvmGraph(SinglePass):
    """A compiled graph. See :class:`Session` and :class:`Elsewhere` in ``deploy/runtimes/__init__.py``."""

    steps_per_sample, vocab_size = 1, 1

    def __init__(self, path: Path, feed: Path, schedules: str | None, *, threads: int) -> None:
        self._program = program(ENVIRONMENT, MODULE, threads=threads)
        opened = self._program.ask("open", model=str(path.absolute()), feed=str(feed), schedules=schedules)
        self._number, self._passes, self._tuned = opened["number"], 1, schedules is not None
        shapes = {name: list(array.shape) for name, array in read_arrays(feed).items()}
        self.facts: Facts = {"encodes": "outputs", "name": path.stem, "inputs": shapes}

    def prefill(self, tokens: AnyArray) -> AnyArray:
        """Runs the graph once on its data; returns a placeholder, because the outputs are not logits."""
        return self.timed(tokens, 0).output

    def timed(self, tokens: AnyArray, steps: int) -> Timed:
        """Times passes on the graph's own data; ``tokens`` are ignored."""
        told = self._program.ask("run", number=self._number, passes=self._passes)
        seconds, cpu_s = plain(told["seconds"]), plain(told["cpu_s"])
        self._passes = max(1, min(MOST_PASSES, int(TOGETHER_S / min(seconds))))
        return Timed(np.zeros((1, 1), np.float32), seconds, [], cpu_s, [])

    def cpu_s(self) -> float | None:
        """Processor seconds of the program so far."""
        used: float = plain(self._program.ask("usage")["cpu_s"])
        return used

    def peak_memory_bytes(self) -> int | None:
        """Always None, because the program's peak memory includes that of compilation."""
        return None

    def settings(self) -> dict[str, object]:
        """Settings to record with a measurement."""
        return {"schedules": "tuned" if self._tuned else "TVM's own"}


class Tvm:
    """TVM with LLVM. See :class:`chipwise.deploy.runtimes.Runtime`."""

    name = ENVIRONMENT

    def version(self) -> str:
        """The runtime's own version."""
        return str(program(ENVIRONMENT, MODULE).ask("version")["version"])

    def open(self, path: Path, *, capacity: int, batch: int, threads: int, options: Mapping[str, object]) -> TvmGraph:
        """Compiles an ONNX graph for the arrays in the file ``options["feed"]``.

        ``options["schedules"]`` is the folder that tuning returned; without it, TVM's own schedules are used.

        Raises:
            MeasurementError: TVM cannot import or run the graph, or there is no feed.
            Unreachable: The environment is missing; the message says how to make it.
        """
        if "feed" not in options or options.keys() - {"feed", "schedules"}:
            raise MeasurementError(
                f"{path}: tvm needs arrays for the graph's inputs in the option `feed`; its only other option "
                "is `schedules`"
            )
        schedules = None if (folder := options.get("schedules")) is None else str(folder)
        return TvmGraph(path, Path(str(options["feed"])), schedules, threads=threads)
