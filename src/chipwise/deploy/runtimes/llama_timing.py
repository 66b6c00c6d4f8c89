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
from typing import NamedTuple

import numpy as np

from chipwise.core.workers import Message, answer_once, ask_once
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


def file_times(files: Sequence[Path], *, rounds: int = ROUNDS) -> list[FileTimes]:
    """The least seconds of a decode step and of a prompt of each file over all rounds, in which files take turns.

    Raises:
        WorkerError: llama.cpp ended the process.
        MeasurementError: llama.cpp cannot load a file.
    """
    request = {"files": [str(file) for file in files], "rounds": rounds}
    reply = ask_once([sys.executable, "-m", __name__], request, timeout_s=_TIMEOUT_S, name="llama.cpp")
    if "error" in reply:
        raise MeasurementError(str(reply["error"]))
    return [FileTimes(*(min(map(float, values)) for values in zip(*each, strict=True))) for each in reply["seconds"]]


def _clock(file: str) -> Callable[[int], FileTimes]:
    """A function that runs a round, given its number."""
    if importlib.util.find_spec("llama_cpp") is None:
        server = LlamaServer(file, context=PREFILL + 2 * STEPS)

        def spent(prompt: Sequence[int], new: int) -> float:
            begun = time.process_time()
            server.complete(prompt, new)
            return time.process_time() - begun

        def asked(number: int) -> FileTimes:
            long = [3 + number, *range(4, 3 + PREFILL)]  # another first token, so that no cached prompt is reused
            prefill_s = spent(long, 1)
            short = long[:PROMPT]
            spent(short, 1)
            return FileTimes((spent(short, _FEW + STEPS) - spent(short, _FEW)) / STEPS, prefill_s)

        return asked
    runtime = import_module("chipwise.deploy.runtimes.llama_cpp").LlamaCpp()
    session = runtime.open(Path(file), capacity=PREFILL + STEPS, batch=1, threads=1, options={"cache": "f16"})
    tokens = np.arange(3, 3 + PREFILL)[None] % session.vocab_size

    def timed(_number: int) -> FileTimes:
        begun = time.thread_time()
        session.prefill(tokens)
        prefill_s = time.thread_time() - begun
        session.prefill(tokens[:, :PROMPT])
        steps = []
        for i in range(STEPS):
            begun = time.thread_time()
            session.decode(tokens[:, i : i + 1])
            steps.append(time.thread_time() - begun)
        return FileTimes(float(np.median(steps)), prefill_s)

    return timed


def answer(request: Mapping[str, object]) -> Message:
    """Computes the reply to a request of :func:`file_times`."""
    files, rounds = request["files"], request["rounds"]
    if not isinstance(files, list) or not isinstance(rounds, int):
        raise MeasurementError("the request must have a list of files and a number of rounds")
    clocks = [_clock(file) for file in files]
    found: list[list[FileTimes]] = [[] for _ in clocks]
    for number in range(rounds):
        for times, clock in zip(found, clocks, strict=True):
            times.append(clock(number))
    return {"seconds": found}


def main() -> int:
    """Reads a request from standard input and writes its reply."""
    return answer_once(answer)


if __name__ == "__main__":
    sys.exit(main())
