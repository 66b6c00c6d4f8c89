"""A test double of a runtime: a JSON file specifies how long each pass takes and how it fails, if at all.

The file holds ``vocab_size``, ``prefill_s`` and ``decode_s`` (seconds of busy waiting), and optionally ``fault``: one
of ``hang``, ``crash``, ``nan``, ``memory`` (allocates until it is refused), ``noise`` (prints to stdout). The option
``drift`` lengthens all waits, as on a machine that has become slower. With the option ``simulated`` a pass does not
wait: the session has its own clock, which each pass advances by exactly its duration.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.core.files import write_json
from chipwise.deploy.runtimes import Facts
from chipwise.errors import MeasurementError
from chipwise.model.arch.design import Design


class FakeFacts(Facts, total=False):
    """Contents of a fake model file, and options of a fake session: times, faults and drift."""

    prefill_s: float
    decode_s: float
    fault: str
    drift: float
    simulated: bool


class FakeSession:
    """Returns logits that depend on all tokens so far, after waiting as long as the file specifies."""

    def __init__(self, facts: FakeFacts, *, capacity: int, batch: int) -> None:
        self.vocab_size: int = facts["vocab_size"]
        self.facts: Facts = facts
        self._told = facts
        self._capacity, self._batch = capacity, batch
        self._seen = np.zeros((batch, 0), np.int64)
        self._now_s = 0.0

    def clock(self) -> float:
        """Seconds of real or simulated time."""
        return self._now_s if self._told.get("simulated") else time.perf_counter()

    def prefill(self, tokens: AnyArray) -> AnyArray:
        """Clears the cache and runs ``tokens`` (batch, prompt)."""
        if tokens.shape[0] != self._batch:
            raise MeasurementError(f"{tokens.shape[0]} sequences given; opened for {self._batch}")
        self._seen = np.zeros((self._batch, 0), np.int64)
        return self._run(tokens, self._told["prefill_s"])

    def decode(self, tokens: AnyArray) -> AnyArray:
        """Runs one more token of each sequence, ``tokens`` (batch, 1)."""
        return self._run(tokens, self._told["decode_s"])

    def _run(self, tokens: AnyArray, seconds: float) -> AnyArray:
        self._misbehave(self._told.get("fault"))
        self._seen = np.concatenate([self._seen, tokens], axis=1)
        if self._seen.shape[1] > self._capacity:
            raise MeasurementError(f"the cache is full ({self._capacity} positions)")
        self._wait(seconds * self._told.get("drift", 1.0))
        state = (self._seen * np.arange(1, self._seen.shape[1] + 1)).sum(axis=1, keepdims=True)
        logits: AnyArray = np.cos(state + np.arange(self.vocab_size)).astype(np.float32)
        if self._told.get("fault") == "nan":
            logits[:] = np.nan
        return logits

    def _wait(self, seconds: float) -> None:
        self._now_s += seconds
        end_s = time.perf_counter() + (0.0 if self._told.get("simulated") else seconds)
        while time.perf_counter() < end_s:
            pass

    def _misbehave(self, fault: str | None) -> None:
        if fault == "hang":
            time.sleep(3600)
        elif fault == "crash":
            os.abort()
        elif fault == "memory":
            eaten = []
            while True:
                eaten.append(np.empty(1 << 24))
        elif fault == "noise":
            os.write(1, b"a runtime that chats\n")


class FakeRuntime:
    """See :class:`chipwise.deploy.runtimes.Runtime`."""

    name = "fake"

    def version(self) -> str:
        """The runtime's own version."""
        return "1"

    def open(
        self, path: Path, *, capacity: int, batch: int, threads: int, options: Mapping[str, object]
    ) -> FakeSession:
        """Reads the file."""
        try:
            facts = json.loads(Path(path).read_text())
        except (OSError, ValueError) as error:
            raise MeasurementError(f"{path}: not a model of the fake runtime: {error}") from None
        return FakeSession(facts | options, capacity=capacity, batch=batch)


def export(design: Design, weights: Mapping[str, AnyArray], path: Path) -> Path:
    """Exports a model file with known times: 30 µs per pass, plus 0.1 ns (decode) or 0.4 ns (prefill) per parameter."""
    count = design.arch.parameters()
    facts = {"vocab_size": design.arch.vocab_size, "design": design.digest, "name": design.arch.name}
    write_json(path, {**facts, "decode_s": 3e-5 + 1e-10 * count, "prefill_s": 3e-5 + 4e-10 * count})
    return path
