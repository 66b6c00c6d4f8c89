"""Code shared by the programs that run and time models: answers the jobs that ``in_program.py`` sends."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn, Protocol

import numpy as np

from chipwise.core.workers import Message, Report, serve
from chipwise.deploy.runtimes import Logits, Tokens


class Loaded(Protocol):
    """A loaded file with a cache for one sequence."""

    facts: Mapping[str, object]

    def step(self, tokens: Tokens, start: int) -> Logits:
        """Returns logits (1, V) after ``tokens`` (1, T) from position ``start`` on."""
        ...


def peak_bytes() -> int:
    """Peak memory of this process so far; ``getrusage`` may instead report the peak of the parent process."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def serve_models(package: str, load: Callable[[Path, int, int], Loaded]) -> NoReturn:
    """Answers jobs about models of one runtime.

    Args:
        package: The runtime's package, whose version is reported as the runtime's.
        load: Function that loads a file, given the numbers of threads and of positions.
    """
    models: dict[int, tuple[Loaded, int]] = {}  # each with its number of threads
    before_bytes = peak_bytes()

    def answer(job: Message, report: Report) -> Message:
        match job["do"]:
            case "open":
                model = load(Path(job["model"]), job["threads"], job["capacity"])
                number = next(each for each in range(len(models) + 1) if each not in models)
                models[number] = model, job["threads"]
                return {"number": number, "facts": model.facts, "memory_bytes": peak_bytes() - before_bytes}
            case "run":
                model, threads = models[job["number"]]
                told = run(model, np.array(job["tokens"]), start=job["start"], steps=job["steps"], threads=threads)
                return {**told, "memory_bytes": peak_bytes() - before_bytes}
            case "forget":
                models.pop(job["number"], None)
                return {"forgotten": job["number"]}
            case "usage":
                return {"cpu_s": time.process_time()}
        return {"version": version(package)}

    serve(answer)


def run(model: Loaded, tokens: Tokens, *, start: int, steps: int, threads: int) -> Message:
    """Times a pass over ``tokens`` (1, T) from ``start`` on, then greedy steps; also returns the last logits."""
    clock = time.thread_time if threads == 1 else time.process_time
    seconds, cpu_s = [], []
    for _ in range(1 + steps):
        cpu_start, began = clock(), time.perf_counter()
        logits = model.step(tokens, start)
        chosen = logits.argmax(-1)
        seconds.append(time.perf_counter() - began)
        cpu_s.append(clock() - cpu_start)
        start, tokens = start + tokens.shape[1], chosen.reshape(1, 1)
    return {"logits": logits.tolist(), "seconds": seconds, "cpu_s": cpu_s}
