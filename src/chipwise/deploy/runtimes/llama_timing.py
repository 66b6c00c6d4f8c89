"""Seconds of a decode step of whole GGUF files in llama.cpp, measured in a process of its own.

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

import numpy as np

from chipwise.core.workers import Message, answer_once, ask_once
from chipwise.deploy.runtimes.llama_server import LlamaServer
from chipwise.errors import MeasurementError

PROMPT, STEPS = 64, 32  # tokens before the first step that is timed, and steps of a round
ROUNDS = 8
_FEW = 4  # tokens of the shorter answer
_TIMEOUT_S = 3600.0


def decode_times(files: Sequence[Path], *, rounds: int = ROUNDS) -> list[list[float]]:
    """Seconds of a decode step of each file in each round; files take turns.

    Raises:
        WorkerError: llama.cpp ended the process.
        MeasurementError: llama.cpp cannot load a file.
    """
    request = {"files": [str(file) for file in files], "rounds": rounds}
    reply = ask_once([sys.executable, "-m", __name__], request, timeout_s=_TIMEOUT_S, name="llama.cpp")
    if "error" in reply:
        raise MeasurementError(str(reply["error"]))
    return [[float(value) for value in each] for each in reply["seconds"]]


def _step_clock(file: str) -> Callable[[], float]:
    """A function that runs a round and returns seconds of a step."""
    if importlib.util.find_spec("llama_cpp") is None:
        server = LlamaServer(file, context=4 * (PROMPT + STEPS))
        prompt = list(range(3, 3 + PROMPT))

        def spent(new: int) -> float:
            begun = time.process_time()
            server.complete(prompt, new)
            return time.process_time() - begun

        spent(1)
        return lambda: (spent(_FEW + STEPS) - spent(_FEW)) / STEPS
    runtime = import_module("chipwise.deploy.runtimes.llama_cpp").LlamaCpp()
    session = runtime.open(Path(file), capacity=PROMPT + STEPS, batch=1, threads=1, options={"cache": "f16"})
    tokens = np.arange(3, 3 + PROMPT)[None] % session.vocab_size

    def median_s() -> float:
        session.prefill(tokens)
        steps = []
        for i in range(STEPS):
            begun = time.thread_time()
            session.decode(tokens[:, i : i + 1])
            steps.append(time.thread_time() - begun)
        return float(np.median(steps))

    return median_s


def answer(request: Mapping[str, object]) -> Message:
    """Computes the reply to a request of :func:`decode_times`."""
    files, rounds = request["files"], request["rounds"]
    if not isinstance(files, list) or not isinstance(rounds, int):
        raise MeasurementError("the request must have a list of files and a number of rounds")
    clocks = [_step_clock(file) for file in files]
    found: list[list[float]] = [[] for _ in clocks]
    for _ in range(rounds):
        for times, clock in zip(found, clocks, strict=True):
            times.append(clock())
    return {"seconds": found}


def main() -> int:
    """Reads a request from standard input and writes its reply."""
    return answer_once(answer)


if __name__ == "__main__":
    sys.exit(main())
