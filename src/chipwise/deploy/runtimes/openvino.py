"""OpenVINO on the CPU, for the same ONNX files as ONNX Runtime.

OpenVINO decomposes attention into plain operators and concatenates past and new keys in each step. Two inference
requests alternate: the cache that one outputs is the input of the other, so the cache is not copied between steps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.deploy.runtimes import Facts, check_positions, prompt_shape
from chipwise.errors import MeasurementError, MissingExtra, Unsupported, line_of

try:
    import openvino
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise MissingExtra("openvino", "openvino") from error


class OpenVinoSession:
    """A loaded exported file. See :class:`chipwise.deploy.runtimes.Session`."""

    def __init__(self, path: Path, *, capacity: int, threads: int) -> None:
        try:
            model = openvino.Core().read_model(str(path))
            self.facts: Facts = json.loads(model.get_rt_info(["framework", "chipwise"]).astype(str))
        except (RuntimeError, ValueError) as error:
            raise MeasurementError(
                f"{path}: not an ONNX file that chipwise wrote and OpenVINO can load: {line_of(error, -1)}"
            ) from None
        if self.facts["logits"] != "last":
            raise MeasurementError(f"{path}: it returns the logits of every position; export it with logits='last'")
        check_positions(path, self.facts["max_tokens"], capacity)
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": "f32",
        }
        if self.facts.get("conv"):
            raise MeasurementError(f"{path}: OpenVINO has no CausalConvWithState, which this model's attention needs")
        try:
            compiled = openvino.Core().compile_model(model, "CPU", settings)
        except RuntimeError as error:
            raise MeasurementError(f"{path}: OpenVINO cannot compile this model: {error}") from None
        self.vocab_size: int = self.facts["vocab_size"]
        self._capacity, self._length, self._turn = capacity, 0, 0
        self._requests = [compiled.create_infer_request() for _ in range(2)]
        self._inputs = {name for port in compiled.inputs for name in port.names}
        self._cache = [f"{layer}.{part}" for layer, _, _ in self.facts["kv"] for part in ("key", "value")]
        self._empty = {
            f"{layer}.{part}": openvino.Tensor(np.zeros((1, heads, 0, size), np.float32))
            for layer, heads, size in self.facts["kv"]
            for part in ("key", "value")
        }

    def prefill(self, tokens: AnyArray) -> AnyArray:
        """Clears the cache and processes ``tokens`` (1, prompt)."""
        prompt_shape(tokens, batch=1, capacity=self._capacity)
        self._length = 0
        return self._run(tokens)

    def decode(self, tokens: AnyArray) -> AnyArray:
        """Processes one more token, ``tokens`` (1, 1)."""
        if self._length >= self._capacity:
            raise MeasurementError(f"the cache holds {self._capacity} positions and is full")
        return self._run(tokens)

    def _run(self, tokens: AnyArray) -> AnyArray:
        before, request = self._requests[self._turn], self._requests[1 - self._turn]
        self._turn = 1 - self._turn
        past, length = self._length, self._length + tokens.shape[1]
        for name in self._cache:
            request.set_tensor(f"past.{name}", before.get_tensor(f"present.{name}") if past else self._empty[name])
        feeds = {
            "tokens": np.ascontiguousarray(tokens, dtype=np.int64),
            "positions": np.arange(past, length, dtype=np.int64)[None],
            "seqlens_k": np.array([length - 1], np.int32),
            "total_sequence_length": np.array(length, np.int32),
        }
        for name in feeds.keys() & self._inputs:
            request.set_tensor(name, openvino.Tensor(feeds[name]))
        request.infer()
        self._length = length
        logits: AnyArray = request.get_tensor("logits").data[:, -1]
        return logits


class OpenVino:
    """OpenVINO's CPU plugin. See :class:`chipwise.deploy.runtimes.Runtime`."""

    name = "openvino"

    def version(self) -> str:
        """The runtime's own version."""
        return str(openvino.__version__).split("-")[0]

    def open(
        self, path: Path, *, capacity: int, batch: int, threads: int, options: Mapping[str, object]
    ) -> OpenVinoSession:
        """Loads an exported ONNX file.

        Raises:
            MeasurementError: The file cannot be run, or options are given.
            Unsupported: ``batch`` is not 1; OpenVINO's GroupQueryAttention takes one sequence.
        """
        if options:
            raise MeasurementError(f"the openvino backend takes no options, but {sorted(options)} were given")
        if batch != 1:
            raise Unsupported(f"OpenVINO runs these models one sequence at a time, not {batch}; use --batch 1")
        return OpenVinoSession(Path(path), capacity=capacity, threads=threads)
