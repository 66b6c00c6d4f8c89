"""Any ONNX graph in ONNX Runtime on the CPU, run on given data. Needs only numpy and onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.deploy.graphs import sessions
from chipwise.deploy.graphs.inputs import read_arrays
from chipwise.deploy.runtimes import Facts, SinglePass
from chipwise.errors import MeasurementError


class OnnxGraph(SinglePass):
    """A loaded graph. The harness treats its pass as a prefill; the harness's tokens are ignored.

    Args:
        path: The ONNX file.
        feed: A ``.npz`` file with an array for each input.
        threads: Threads of the runtime.

    Raises:
        MeasurementError: The runtime cannot load or run the graph, or an output is not finite.
    """

    vocab_size = 1

    def __init__(self, path: Path, feed: Path, *, threads: int) -> None:
        self._feed = read_arrays(feed)
        self._session = sessions.opened(path, threads=threads)
        self._binding = self._session.io_binding()
        for name, array in self._feed.items():
            self._binding.bind_cpu_input(name, array)
        first = sessions.outputs(self._session, self._feed, path)
        for name, array in first.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise MeasurementError(f"{path}: its output {name!r} is not finite for these inputs; give other inputs")
            self._binding.bind_output(name, "cpu")
        shapes = {name: list(array.shape) for name, array in self._feed.items()}
        self.facts: Facts = {"encodes": next(iter(first)), "name": path.stem, "inputs": shapes}
        self._answer = np.zeros((1, 1), np.float32)

    def prefill(self, tokens: AnyArray) -> AnyArray:
        """Runs the graph once on its data; returns a placeholder, because the outputs are not logits."""
        self._session.run_with_iobinding(self._binding)
        return self._answer
