"""Program that runs and times ``.tflite`` files; runs in the environment ``litert`` (``core/environments.py``).

Signatures are those of ``deploy/export/litert_program.py``. Inputs are written and outputs are read in place, in the
interpreter's own memory. The cache is resized to the number of positions that are needed.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from ai_edge_litert.interpreter import Interpreter
from ai_edge_litert.schema_py_generated import Model as Tables

from chipwise.core.arrays import AnyArray
from chipwise.deploy.runtimes import Logits, Tokens
from chipwise.deploy.runtimes.timed_program import serve_models
from chipwise.errors import MeasurementError

FACTS = "chipwise"  # the name of the file's metadata, JSON
HIDDEN = -1e9  # value of the mask at positions that are not filled
SINGLY = 4  # up to this many tokens are quicker one by one than in a prompt pass


class Signature:
    """A signature of a file, with its inputs and outputs in the interpreter's memory."""

    def __init__(self, interpreter: Interpreter, name: str, capacity: int) -> None:
        runner = interpreter.get_signature_runner(name)
        self._core, self._graph = interpreter._interpreter, runner._subgraph_index
        inputs, outputs = runner.get_input_details(), runner.get_output_details()
        for part, told in inputs.items():
            shape, resized = told["shape"], {"mask": -1, "cache_k": -1, "cache_v": -2}.get(part.rstrip("0123456789"))
            if resized is not None:
                shape[resized] = capacity
                self._core.ResizeInputTensor(told["index"], shape.astype(np.int32), False, self._graph)
        self._core.AllocateTensors(self._graph)
        self.inputs, self.outputs = (
            {part: self._core.tensor(self._core, told["index"], self._graph) for part, told in parts.items()}
            for parts in (inputs, outputs)
        )
        self.count: int = self.inputs["tokens"].shape[1]
        for value in self.inputs.values():
            value[...] = 0  # masked values are multiplied by zero, so they must be finite

    def run(self, tokens: Tokens, start: int) -> None:
        """Computes the outputs for ``tokens`` (1, T), at most ``count`` tokens, from position ``start`` on."""
        put, length = self.inputs, tokens.shape[1]
        put["tokens"][:, :length] = tokens
        if "positions" in put:
            put["positions"][:length] = range(start, start + length)
        if "last" in put:
            put["last"][0] = length - 1
        if "mask" in put:
            put["mask"][..., :start] = 0
            put["mask"][..., start:] = HIDDEN
        self._core.Invoke(self._graph)

    def keep(self, made: Mapping[str, AnyArray], start: int, count: int) -> None:
        """Copies the first ``count`` keys and values of ``made`` into the cache, from position ``start`` on."""
        for name, value in made.items():
            if name.startswith("k"):
                self.inputs[f"cache_{name}"][..., start : start + count] = value[..., :count]
            elif name.startswith("v"):
                self.inputs[f"cache_{name}"][..., start : start + count, :] = value[..., :count, :]


class Model:
    """A loaded file with a cache of ``capacity`` positions."""

    def __init__(self, path: Path, threads: int, capacity: int) -> None:
        try:
            interpreter = Interpreter(model_path=str(path), num_threads=threads)
            self.facts = facts(path)
            self._decode, self._prefill = (Signature(interpreter, name, capacity) for name in ("decode", "prefill"))
        except (RuntimeError, ValueError, StopIteration) as error:
            raise MeasurementError(f"{path}: not a LiteRT file that chipwise wrote: {error}") from None

    def step(self, tokens: Tokens, start: int) -> Logits:
        """Returns logits (1, V) after ``tokens`` (1, T) from position ``start`` on; the next call overwrites them."""
        done, many = 0, start == 0  # the prefill cache only holds the positions of a prompt
        while done < tokens.shape[1]:
            many = many and tokens.shape[1] - done > SINGLY
            part = self._prefill if many else self._decode
            given = tokens[:, done : done + part.count]
            part.run(given, start + done)
            for other in {part, self._decode}:
                other.keep(part.outputs, start + done, given.shape[1])
            done += given.shape[1]
        logits: Logits = part.outputs["logits"]
        return logits


def facts(path: Path) -> Mapping[str, object]:
    """The file's metadata.

    Raises:
        StopIteration: The file has no metadata that chipwise wrote.
    """
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as held:
        tables = Tables.GetRootAs(held, 0)
        named = (tables.Metadata(number) for number in range(tables.MetadataLength()))
        place = next(each.Buffer() for each in named if each.Name() == FACTS.encode())
        text = tables.Buffers(place).DataAsNumpy().tobytes()
        del tables, named
    found: Mapping[str, object] = json.loads(text)
    return found


if __name__ == "__main__":
    serve_models("ai-edge-litert", Model)
