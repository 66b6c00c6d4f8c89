"""The measured process: loads one model, warms up, times it, answers in JSON, ends.

``python -m chipwise.profile.worker`` reads a request from stdin and writes one reply to stdout. It imports numpy and
the runtime alone, so that its peak memory is that of serving the model.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chipwise.core.errors import ChipwiseError, MeasurementError
from chipwise.profile import load
from chipwise.profile.backends import RUNTIMES, Session

Array = npt.NDArray[Any]
_FIRST_CYCLES = 2  # never timed: loading, first touches
_ANCHOR_EVERY_S = 0.05
_STEADY = 0.03  # two windows of warm-up this close are steady


def main() -> int:
    """Reads the request, measures, prints the reply."""
    request = json.load(sys.stdin)
    reply_to = os.dup(1)
    os.dup2(2, 1)  # what the runtime prints must not mix with the reply
    try:
        reply = run(request)
    except MemoryError:
        reply = {"error": f"out of memory (limit {request['memory_limit_bytes'] / 1e6:.0f} MB)"}
    except ChipwiseError as error:
        reply = {"error": str(error)}
    with os.fdopen(reply_to, "w") as stream:
        json.dump(reply, stream)
    return 0


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Measures as ``request`` says (see ``harness.py``) and returns samples and readings as plain data."""
    cpus = request["cpus"]
    load.pin(cpus)
    resource.setrlimit(resource.RLIMIT_AS, (request["memory_limit_bytes"], resource.RLIM_INFINITY))
    runtime = RUNTIMES.load(request["runtime"])()
    prompt, new, batch = request["prompt_tokens"], request["new_tokens"], request["batch"]
    session = runtime.open(
        Path(request["model"]),
        capacity=prompt + new,
        batch=batch,
        threads=request["threads"],
        options=request["options"],
    )
    generator = np.random.default_rng(request["seed"])
    tokens = generator.integers(0, session.vocab_size, (batch, prompt))
    loop = Loop(session, tokens, steps=max(1, new - 1))
    _warm_up(loop, request["warm_up_s"])
    peak_memory_bytes = load.status_bytes("VmHWM")  # before the anchors take memory of their own
    anchors = Anchors()
    loop.clear()
    gc.collect()
    gc.disable()
    before = load.read(cpus)
    started = time.perf_counter()
    while True:
        elapsed = time.perf_counter() - started
        enough_steps = len(loop.tpot_s) >= request["min_steps"]
        if enough_steps and len(loop.ttft_s) >= request["min_prefills"] and elapsed >= request["seconds"]:
            break
        loop.cycle(decode=not enough_steps or elapsed < request["seconds"])
        anchors.run_if_due()
    after = load.read(cpus)
    loop.check()
    return {
        "runtime_version": runtime.version(),
        "facts": {"design": session.facts.get("design", ""), "name": session.facts.get("name", "")},
        "ttft_s": loop.ttft_s,
        "tpot_s": loop.tpot_s,
        "ttft_cpu_s": loop.ttft_cpu_s,
        "tpot_cpu_s": loop.tpot_cpu_s,
        "cpu_s": after.process_cpu_s - before.process_cpu_s,
        "wall_s": after.wall_s - before.wall_s,
        "peak_memory_bytes": peak_memory_bytes,
        "readings": readings(before, after, threads=request["threads"], cpus=len(cpus)),
        "anchor_compute_s": anchors.compute_s,
        "anchor_memory_s": anchors.memory_s,
        "load_before": before.load,
        "load_after": after.load,
    }


class Loop:
    """Prefills and decode steps, each timed with the choice of the next token."""

    def __init__(self, session: Session, tokens: Array, *, steps: int) -> None:
        self._session, self._tokens, self._steps = session, tokens, steps
        self._logits: Array = np.zeros((1, 1), np.float32)
        self.clear()

    def cycle(self, *, decode: bool = True) -> None:
        """One request: the prompt, then (if ``decode``) all new tokens, greedily."""
        clock, cpu, session = time.perf_counter, time.process_time, self._session
        cpu_start, start = cpu(), clock()
        logits = session.prefill(self._tokens)
        token = logits.argmax(axis=-1)[:, None]
        self.ttft_s.append(clock() - start)
        self.ttft_cpu_s.append(cpu() - cpu_start)
        for _ in range(self._steps if decode else 0):
            cpu_start, start = cpu(), clock()
            logits = session.decode(token)
            token = logits.argmax(axis=-1)[:, None]
            self.tpot_s.append(clock() - start)
            self.tpot_cpu_s.append(cpu() - cpu_start)
        self._logits = logits

    def check(self) -> None:
        """Refuses logits that are not numbers."""
        if not np.isfinite(self._logits).all():
            raise MeasurementError("the model's logits are not finite numbers")

    def clear(self) -> None:
        """Forgets all samples."""
        self.ttft_s: list[float] = []
        self.tpot_s: list[float] = []
        self.ttft_cpu_s: list[float] = []  # of the same samples: processor time of this process
        self.tpot_cpu_s: list[float] = []


class Anchors:
    """Fixed work, timed between requests: its spread shows a core that slows down or memory that others use."""

    def __init__(self) -> None:
        self._small = np.random.default_rng(0).standard_normal((48, 48)).astype(np.float32)
        self._large = np.ones(1_000_000, np.float32)  # beyond private caches
        self._last = 0.0
        self.compute_s: list[float] = []
        self.memory_s: list[float] = []

    def run_if_due(self) -> None:
        """Times each anchor once, after an untimed turn: what the model left in the caches must not show.

        Not oftener than every 50 ms, so that few requests find the caches full of anchors.
        """
        clock = time.perf_counter
        if clock() - self._last < _ANCHOR_EVERY_S:
            return
        for _ in range(2):
            start = clock()
            for _ in range(16):
                np.exp(self._small)
            middle = clock()
            self._large.sum()
            end = clock()
        self._last = end
        self.compute_s.append(middle - start)
        self.memory_s.append(end - middle)


def readings(before: load.Reading, after: load.Reading, *, threads: int, cpus: int) -> dict[str, float | None]:
    """What happened between two readings, as ``verdict.judge`` takes it."""
    wall_s = max(after.wall_s - before.wall_s, 1e-9)
    cpu_s = after.process_cpu_s - before.process_cpu_s
    others = steal = elsewhere = None
    other_cpus = (os.cpu_count() or 1) - cpus
    if before.busy_s is not None and after.busy_s is not None:
        others = max(0.0, after.busy_s - before.busy_s - cpu_s) / (wall_s * cpus)
    if before.steal_s is not None and after.steal_s is not None:
        steal = (after.steal_s - before.steal_s) / (wall_s * cpus)
    if before.elsewhere_s is not None and after.elsewhere_s is not None and other_cpus:
        elsewhere = (after.elsewhere_s - before.elsewhere_s) / (wall_s * other_cpus)
    return {
        "lost": max(0.0, 1 - cpu_s / wall_s) if threads == 1 else None,
        "others": others,
        "steal": steal,
        "elsewhere": elsewhere,
        "switches_per_s": (after.involuntary_switches - before.involuntary_switches) / wall_s,
    }


def _warm_up(loop: Loop, limit_s: float) -> None:
    """Runs until the time of a decode step is steady, at least two cycles and at most about ``limit_s``."""
    started = time.perf_counter()
    for _ in range(_FIRST_CYCLES):
        loop.cycle()
        loop.check()
    previous = float("inf")
    while time.perf_counter() - started < limit_s:
        loop.clear()
        loop.cycle()
        median = sorted(loop.tpot_s)[len(loop.tpot_s) // 2]
        if abs(median / previous - 1) < _STEADY:
            return
        previous = median


if __name__ == "__main__":
    sys.exit(main())
