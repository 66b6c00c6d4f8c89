"""Runs and times ``.pte`` files with ExecuTorch, as a program in the environment of ``core/environments.py``."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

import torch

from chipwise.core.workers import Message, Report, serve
from chipwise.errors import MeasurementError

# As the package's portable_lib.py and custom_ops.py do, which import its converter too: some seconds and 300 MB.
sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
from executorch.extension.pybindings import _C as runtime  # noqa: E402, N811

for _library in Path(runtime.__file__).parents[1].glob("llm/custom_ops/*custom_ops_aot_lib.*"):
    torch.ops.load_library(_library)  # attention with a cache


class Loaded(Protocol):
    """A file that ExecuTorch has loaded."""

    def forward(self, inputs: tuple[torch.Tensor, ...], clone_outputs: bool) -> list[torch.Tensor]:
        """Outputs for inputs; without ``clone_outputs`` the next call overwrites them."""
        ...

    def run_method(self, name: str, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        """Outputs of another method."""
        ...


models: dict[int, Loaded] = {}
FACTS = "chipwise"  # the constant method that holds the file's metadata, JSON in bytes


def peak_bytes() -> int:
    """Most memory of this process so far."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


BEFORE_BYTES = peak_bytes()


def answer(job: Message, report: Report) -> Message:
    """The answer to one job; see the callers in ``executorch.py``."""
    match job["do"]:
        case "open":
            return opened(Path(job["model"]), threads=job["threads"])
        case "run":
            return run(models[job["number"]], job["tokens"], start=job["start"], steps=job["steps"])
        case "forget":
            models.pop(job["number"], None)
            return {"forgotten": job["number"]}
        case "usage":
            return {"cpu_s": time.process_time()}
    return {"version": version("executorch")}


def opened(path: Path, *, threads: int) -> Message:
    """Loads a file; its number and metadata."""
    runtime._unsafe_reset_threadpool(threads)
    torch.set_num_threads(threads)
    try:
        model = runtime._load_for_executorch(str(path))
        facts = json.loads(bytes(model.run_method(FACTS, ())[0].tolist()))
    except (RuntimeError, ValueError) as error:
        raise MeasurementError(f"{path}: not an ExecuTorch file that chipwise wrote: {error}") from None
    number = len(models) + 1
    while number in models:
        number += 1
    models[number] = model
    return {"number": number, "facts": facts, "memory_bytes": peak_bytes() - BEFORE_BYTES}


def run(model: Loaded, tokens: list[list[int]], *, start: int, steps: int) -> Message:
    """A pass over ``tokens`` (1, T) at the position ``start``, then greedy steps; logits of the last position."""
    given, place = torch.tensor(tokens), torch.tensor([start])
    clock = time.thread_time if torch.get_num_threads() == 1 else time.process_time
    seconds, cpu_s = [], []
    for _ in range(1 + steps):
        cpu_start, began = clock(), time.perf_counter()
        logits = model.forward((given, place), False)[0]
        chosen = logits.argmax(-1)
        seconds.append(time.perf_counter() - began)
        cpu_s.append(clock() - cpu_start)
        place = place + given.shape[1]
        given = chosen.reshape(1, 1)
    return {
        "logits": logits.tolist(),
        "seconds": seconds,
        "cpu_s": cpu_s,
        "memory_bytes": peak_bytes() - BEFORE_BYTES,
    }


if __name__ == "__main__":
    serve(answer)
