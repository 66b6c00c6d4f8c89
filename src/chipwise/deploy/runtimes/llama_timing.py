"""Times a decode step and a prompt of whole GGUF files in llama.cpp, in a separate process.

Times are processor times with one computing thread, which other programs disturb little. llama-cpp-python runs single
steps, which are timed one by one. xllamacpp's server cannot run single steps. There, a longer and a shorter answer are
timed; the difference of their times, divided by the difference of their token counts, is the time of a step.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import psutil

from chipwise.core.workers import Message, Report, WorkerPool, serve
from chipwise.deploy.runtimes.llama_server import LlamaServer
from chipwise.errors import MeasurementError, WorkerError

PROMPT, STEPS = 64, 32  # tokens before the first timed step, and steps of a round; fewer if the context is short
PREFILL = 256  # tokens of the timed prompt, if the context holds them
ROUNDS = 8
_FEW = 4  # tokens of the shorter answer
SLOW_S = 4.0  # seconds that the steps of a round may take; a prompt that takes longer is timed in fewer rounds
_TIMEOUT_S = 3600.0


class FileTimes(NamedTuple):
    """Seconds of a decode step and of a prompt of one file."""

    step_s: float
    prefill_s: float  # seconds of a prompt with :func:`prompt_of` tokens
    prefill_spread: float = 0.0  # second smallest time of the prompt over the smallest, minus 1


def prompt_of(positions: int) -> int:
    """Returns the number of tokens of the timed prompt, for a model with ``positions`` positions."""
    return min(PREFILL, positions - 1)


def steps_within(step_s: float, most: int) -> int:
    """Returns the number of steps of a round: at most ``most``, and fewer if they would take more than ``SLOW_S``.

    >>> steps_within(0.006, 32), steps_within(0.8, 32), steps_within(9.0, 32)
    (32, 5, 4)
    """
    return max(min(_FEW, most), min(most, int(SLOW_S / step_s) if step_s > 0 else most))


def file_rounds(
    files: Sequence[Path], caches: Sequence[str], *, depth: int, positions: int, rounds: range
) -> Iterator[list[float]]:
    """Times the files in turns; yields one list for each round: each file's seconds of a decode step.

    In even rounds, the list also has each file's seconds of a prompt, after those of the decode steps.

    Args:
        files: GGUF files.
        caches: Format of keys and values for each file, such as llama.cpp's default, ``f16``.
        depth: Tokens before the first timed step; fewer if the context would be too short for the steps.
        positions: Maximum number of tokens that the models can read.
        rounds: Numbers of the rounds to run.

    Raises:
        WorkerError: llama.cpp ended the process.
        MeasurementError: llama.cpp cannot load a file.
    """
    job = {"files": [str(file) for file in files], "caches": list(caches), "positions": positions}
    job["steps"] = steps = min(STEPS, (positions - _FEW) // 2)
    job["depth"] = min(depth, positions - _FEW - steps)
    with WorkerPool([sys.executable, "-m", __name__], 1, name="llama.cpp", silence_s=_TIMEOUT_S) as pool:
        pool.submit({**job, "rounds": [rounds.start, rounds.stop]})
        for event in pool.events():
            if event.kind == "failed":
                raise (WorkerError if event.died else MeasurementError)(str(event.data.get("message")))
            if event.kind == "progress":
                yield [float(each) for each in event.data["seconds"]]


def least_times(rounds: Sequence[Sequence[float]]) -> list[FileTimes]:
    """Each file's minimum seconds of a decode step and of a prompt over all ``rounds`` of :func:`file_rounds`."""
    count = min(map(len, rounds))
    prompts = [each[count:] for each in rounds if len(each) > count]
    steps = [each[:count] for each in rounds]
    found = []
    for step, prompt in zip(zip(*steps, strict=True), zip(*prompts, strict=True), strict=True):
        least, *others = sorted(prompt)
        spread = others[0] / least - 1 if others and least > 0 else 0.0
        found.append(FileTimes(step_s=min(step), prefill_s=least, prefill_spread=spread))
    return found


class Clock(Protocol):
    """Times one file."""

    def prefill_s(self, number: int) -> float:
        """Seconds of a prompt in round ``number``."""

    def step_s(self) -> float:
        """Seconds of a decode step after ``depth`` tokens."""


class _ServerClock:
    """Times a file in llama.cpp's server: a step comes from the difference between a longer and a shorter answer."""

    def __init__(self, file: str, cache: str, depth: int, steps: int, positions: int) -> None:
        context = min(positions, max(PREFILL, depth) + _FEW + 2 * STEPS)
        self._server = LlamaServer(file, cache=cache, context=context)
        self._prompt, self._steps = [3 + i % PREFILL for i in range(depth)], steps
        self._tokens = prompt_of(positions)

    def _spent(self, prompt: Sequence[int], new: int) -> float:
        begun = time.process_time()
        self._server.complete(prompt, new)
        return time.process_time() - begun

    def prefill_s(self, number: int) -> float:
        return self._spent([4 + number, *range(5, 4 + self._tokens)], 1)  # a new first token, so nothing is cached

    def step_s(self) -> float:
        self._spent(self._prompt, 1)  # so that the prompt is cached
        few_s = self._spent(self._prompt, _FEW)
        self._steps = steps_within(few_s / _FEW, self._steps)
        return (self._spent(self._prompt, _FEW + self._steps) - few_s) / self._steps


class _SessionClock:
    """Times a file in llama-cpp-python, step by step."""

    def __init__(self, file: str, cache: str, depth: int, steps: int, positions: int) -> None:
        runtime = import_module("chipwise.deploy.runtimes.llama_cpp").LlamaCpp()
        capacity, self._prompt = min(positions, max(PREFILL, depth) + steps), prompt_of(positions)
        self._session = runtime.open(Path(file), capacity=capacity, batch=1, threads=1, options={"cache": cache})
        self._tokens, self._depth = np.arange(3, 3 + capacity)[None] % self._session.vocab_size, depth
        self._steps = steps

    def _spent(self, run: Callable[[npt.NDArray[np.int64]], object], tokens: npt.NDArray[np.int64]) -> float:
        begun = time.thread_time()
        run(tokens)
        return time.thread_time() - begun

    def prefill_s(self, number: int) -> float:
        return self._spent(self._session.prefill, self._tokens[:, : self._prompt])

    def step_s(self) -> float:
        self._session.prefill(self._tokens[:, : self._depth])
        first_s = self._spent(self._session.decode, self._tokens[:, :1])
        self._steps = steps_within(first_s, self._steps)
        rest = [self._spent(self._session.decode, self._tokens[:, i : i + 1]) for i in range(1, self._steps)]
        return float(np.median([first_s, *rest]))


def answer(job: Message, report: Report) -> None:
    """Reports the rounds of a job of :func:`file_rounds`."""
    clocks = _clocks(job)
    every = 2  # rounds from one prompt to the next
    for number in range(*job["rounds"]):
        steps = [clock.step_s() for clock in clocks]
        prompts = _prompts_s(clocks, number) if number % every == 0 else []
        every = ROUNDS // 2 if prompts and max(prompts) > SLOW_S else every
        report(seconds=steps + prompts)


def _prompts_s(clocks: Sequence[Clock], number: int) -> list[float]:
    """Returns the seconds of a prompt for each entry of ``clocks``.

    If an object is in the list twice, it is timed once and its time is returned twice. A second prompt would be
    answered from llama.cpp's cache.
    """
    taken: dict[int, float] = {}
    for clock in clocks:
        if id(clock) not in taken:
            taken[id(clock)] = clock.prefill_s(number)
    return [taken[id(clock)] for clock in clocks]


def _clocks(job: Message) -> list[Clock]:
    """Returns the object that times each file; if memory is scarce, a file that is listed twice is loaded once."""
    made = _ServerClock if importlib.util.find_spec("llama_cpp") is None else _SessionClock
    pairs: list[tuple[str, str]] = list(zip(job["files"], job["caches"], strict=True))
    mapped = sum(Path(file).stat().st_size for file, _ in pairs)
    scarce = 2 * mapped > psutil.virtual_memory().available  # llama.cpp also keeps repacked weights
    known: dict[tuple[str, str], Clock] = {}
    found = []
    for pair in pairs:
        if not scarce or pair not in known:
            known[pair] = made(*pair, job["depth"], job["steps"], job["positions"])
        found.append(known[pair])
    return found


if __name__ == "__main__":
    serve(answer)
