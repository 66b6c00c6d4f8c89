"""Seconds of a decode step and of a prompt of whole GGUF files in llama.cpp, measured in a process of its own.

The processor time of one thread, which other programs disturb little. llama-cpp-python runs single steps; in xllamacpp,
whose server does not, a step is the difference between a longer and a shorter answer.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from chipwise.core.workers import Message, answer_of, answer_once
from chipwise.deploy.runtimes.llama_server import LlamaServer
from chipwise.errors import MeasurementError

PROMPT, STEPS = 64, 32  # tokens before the first step that is timed, and steps of a round
PREFILL = 256  # tokens of the prompt that is timed
ROUNDS = 8
_FEW = 4  # tokens of the shorter answer
_TIMEOUT_S = 3600.0


class FileTimes(NamedTuple):
    """Seconds of one file."""

    step_s: float
    prefill_s: float  # of PREFILL tokens


def file_times(
    files: Sequence[Path], *, caches: Sequence[str] | None = None, depth: int = PROMPT, rounds: int = ROUNDS
) -> list[FileTimes]:
    """The least seconds of a decode step and of a prompt of each file over all rounds, in which files take turns.

    Args:
        files: GGUF files.
        caches: Format of keys and values for each file; None: llama.cpp's default, ``f16``.
        depth: Tokens before the first step that is timed.
        rounds: Rounds of steps; half as many of prompts.

    Raises:
        WorkerError: llama.cpp ended the process.
        MeasurementError: llama.cpp cannot load a file.
    """
    held = list(caches or ["f16"] * len(files))
    request = {"files": [str(file) for file in files], "caches": held, "depth": depth, "rounds": rounds}
    reply = answer_of(__name__, request, timeout_s=_TIMEOUT_S, name="llama.cpp")
    return [FileTimes(*map(float, each)) for each in reply["seconds"]]


class Clock(Protocol):
    """Times one file."""

    def prefill_s(self, number: int) -> float:
        """Seconds of a prompt in round ``number``."""

    def step_s(self) -> float:
        """Seconds of a decode step after ``depth`` tokens."""


class _ServerClock:
    """By llama.cpp's server: a step is the difference between a longer and a shorter answer."""

    def __init__(self, file: str, cache: str, depth: int) -> None:
        self._server = LlamaServer(file, cache=cache, context=max(PREFILL, depth) + _FEW + 2 * STEPS)
        self._prompt = [3 + i % PREFILL for i in range(depth)]

    def _spent(self, prompt: Sequence[int], new: int) -> float:
        begun = time.process_time()
        self._server.complete(prompt, new)
        return time.process_time() - begun

    def prefill_s(self, number: int) -> float:
        return self._spent([4 + number, *range(5, 4 + PREFILL)], 1)  # a first token of its own: nothing is cached

    def step_s(self) -> float:
        self._spent(self._prompt, 1)  # so that the prompt is cached
        return (self._spent(self._prompt, _FEW + STEPS) - self._spent(self._prompt, _FEW)) / STEPS


class _SessionClock:
    """By llama-cpp-python, step by step."""

    def __init__(self, file: str, cache: str, depth: int) -> None:
        runtime = import_module("chipwise.deploy.runtimes.llama_cpp").LlamaCpp()
        capacity = max(PREFILL, depth) + STEPS
        self._session = runtime.open(Path(file), capacity=capacity, batch=1, threads=1, options={"cache": cache})
        self._tokens, self._depth = np.arange(3, 3 + capacity)[None] % self._session.vocab_size, depth

    def _spent(self, run: Callable[[npt.NDArray[np.int64]], object], tokens: npt.NDArray[np.int64]) -> float:
        begun = time.thread_time()
        run(tokens)
        return time.thread_time() - begun

    def prefill_s(self, number: int) -> float:
        return self._spent(self._session.prefill, self._tokens[:, :PREFILL])

    def step_s(self) -> float:
        self._session.prefill(self._tokens[:, : self._depth])
        return float(np.median([self._spent(self._session.decode, self._tokens[:, i : i + 1]) for i in range(STEPS)]))


def answer(request: Mapping[str, object]) -> Message:
    """Computes the reply to a request of :func:`file_times`."""
    files, caches, depth, rounds = (request[name] for name in ("files", "caches", "depth", "rounds"))
    if not (
        isinstance(files, list) and isinstance(caches, list) and isinstance(depth, int) and isinstance(rounds, int)
    ):
        raise MeasurementError("the request must have files, a cache format for each, a depth and a number of rounds")
    made = _ServerClock if importlib.util.find_spec("llama_cpp") is None else _SessionClock
    clocks: list[Clock] = [made(file, cache, depth) for file, cache in zip(files, caches, strict=True)]
    prompts = [[clock.prefill_s(number) for clock in clocks] for number in range(max(1, rounds // 2))]
    steps = [[clock.step_s() for clock in clocks] for _ in range(rounds)]
    least = (map(min, zip(*times, strict=True)) for times in (steps, prompts))
    return {"seconds": [list(pair) for pair in zip(*least, strict=True)]}


def main() -> int:
    """Reads a request from standard input and writes its reply."""
    return answer_once(answer)


if __name__ == "__main__":
    sys.exit(main())
