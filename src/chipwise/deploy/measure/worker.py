"""The measuring process: loads one model, warms up, times it and replies in JSON.

``python -m chipwise.deploy.measure.worker`` reads a request from stdin and writes one reply to stdout. It imports
only numpy and the runtime, so that its peak memory is that of serving the model. With ``--stay`` it is a worker of a
pool and measures one model after another.
"""

from __future__ import annotations

import gc
import itertools
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.core.digest import plain
from chipwise.core.workers import answer_once, serve
from chipwise.deploy.measure import sensors
from chipwise.deploy.measure.messages import Reply, Request
from chipwise.deploy.measure.reference_work import REFERENCE_PROMPT, REFERENCE_STEPS, ReferenceWork
from chipwise.deploy.runtimes import RUNTIMES, Elsewhere, Facts, Session, clock_of
from chipwise.errors import MeasurementError, MissingExtra, Unreachable
from chipwise.hardware.detect import detect

_FIRST_CYCLES = 2  # never timed, because of loading and first memory accesses
LEAST_PASSES = 3  # minimum number of passes of a model that is too slow for the wanted number
_STEADY = 0.03  # relative difference between two windows of warm-up that counts as steady


def main() -> int:
    """Reads the request, measures, prints the reply."""
    if "--stay" in sys.argv:
        serve(lambda request, report: answer_next(plain(request)))
    return answer_once(answer)


def answer_next(request: Request) -> Reply:
    """Like :func:`answer`, in a process that measures other models afterwards."""
    try:
        return answer(request)
    finally:
        signal.alarm(0)
        gc.enable()


def answer(request: Request) -> Reply:
    """Like :func:`run`, but if memory runs out or the runtime is missing, replies with an error."""
    # Ends this process if its parent is gone. (With a limit on CPU time, the CPU clock would advance in steps of 4 ms.)
    signal.alarm(request["cpu_limit_s"])
    try:
        return run(request)
    except MemoryError:
        limit = request["memory_limit_bytes"]
        return {"error": "out of memory" + (f" (limit {limit / 1e6:.0f} MB)" if limit else "")}
    except (MissingExtra, Unreachable) as error:
        return {"error": str(error), "lacks": True}


def run(request: Request) -> Reply:
    """Measures as ``request`` specifies (see ``harness.py``); returns samples and readings as plain data."""
    cpus = request["cpus"] or sensors.idlest_cpus(request["threads"])
    sensors.pin(cpus)
    if request["memory_limit_bytes"] is not None:
        _limit(resource.RLIMIT_AS, request["memory_limit_bytes"])
    runtime = RUNTIMES.load(request["runtime"])()
    prompt, new, batch = request["prompt_tokens"], request["new_tokens"], request["batch"]
    threads, options = request["threads"], request["options"]
    session = runtime.open(Path(request["model"]), capacity=prompt + new, batch=batch, threads=threads, options=options)
    generator = np.random.default_rng(request["seed"])
    steps = 0 if "encodes" in session.facts else max(1, new - 1)
    loop = Loop(session, requested(session, generator, batch=batch, prompt=prompt), steps=steps)
    steady = warm_up(loop, request["warm_up_s"])
    outside = session if isinstance(session, Elsewhere) else None
    # read before the reference work allocates memory
    peak_memory_bytes = outside.peak_memory_bytes() if outside else sensors.status_bytes("VmHWM")
    reference: Session | None = None
    if request["reference"]:
        room = REFERENCE_PROMPT + REFERENCE_STEPS
        own = {name: value for name, value in options.items() if name != "feed"}  # without the model's data
        reference = runtime.open(Path(request["reference"]), capacity=room, batch=1, threads=threads, options=own)
    reference_work = ReferenceWork(reference)
    reference_work.run_if_due()
    loop.clear()
    gc.collect()
    gc.disable()
    energy, clock_hz = sensors.energy(), sensors.frequency_hz(cpus)
    before = read_load(cpus, outside)
    began = clock_of(session)()
    time_requests(loop, request, between=reference_work.run_if_due)
    after = read_load(cpus, outside)
    loop.check()
    seen = readings(before, after, threads=request["threads"], cpus=len(cpus))
    found: Reply = {
        "cpus": list(cpus),
        "runtime_version": runtime.version(),
        "facts": told(session.facts),
        "ttft_s": loop.ttft_s,
        "tpot_s": loop.tpot_s,
        "ttft_cpu_s": loop.ttft_cpu_s,
        "tpot_cpu_s": loop.tpot_cpu_s,
        "tpot_at_s": [moment - began for moment in loop.tpot_at_s],
        "cpu_s": after.process_cpu_s - before.process_cpu_s,
        "wall_s": after.wall_s - before.wall_s,
        "peak_memory_bytes": peak_memory_bytes,
        "energy_j": sensors.energy().since(energy),
        "readings": seen | {"unsteady": float(not steady)},
        "reference_s": reference_work.seconds,
        "load_before": before.load,
        "load_after": after.load,
        "clock_hz_before": clock_hz,
        "clock_hz_after": sensors.frequency_hz(cpus),
        "temperature_c": sensors.temperature_c(),
        "settings": outside.settings() if outside else {},
        "steps_per_sample": outside.steps_per_sample if outside else 1,
    }
    if request.get("describe"):
        machine = detect()
        found["machine"], found["instructions"] = machine.name, machine.instructions
    return found


def time_requests(loop: Loop, request: Request, *, between: Callable[[], None] = lambda: None) -> None:
    """Runs requests until there are enough samples, or the request's time limit is reached."""
    started = time.perf_counter()
    while True:
        elapsed = time.perf_counter() - started
        enough_steps = len(loop.tpot_s if loop.generates else loop.ttft_s) >= request["min_steps"]
        if enough_steps and len(loop.ttft_s) >= request["min_prefills"] and elapsed >= request["seconds"]:
            return
        if elapsed >= request["most_s"] and len(loop.ttft_s) >= LEAST_PASSES:
            return
        loop.cycle(decode=not enough_steps or elapsed < request["seconds"])
        between()


def read_load(cpus: Collection[int], outside: Elsewhere | None) -> sensors.LoadReading:
    """Counters of the cores ``cpus`` and of this process, including a separate process that runs the model, if any."""
    found = sensors.read_load(cpus)
    more = outside.cpu_s() if outside else None
    return replace(found, process_cpu_s=found.process_cpu_s + more) if more else found


def told(facts: Facts) -> Facts:
    """Returns those fields of a file's metadata that a measurement stores."""
    told: Facts = {"design": facts.get("design", ""), "name": facts.get("name", "")}
    if image := facts.get("image"):
        told["image"] = image
    if seconds := facts.get("seconds"):
        told["seconds"] = seconds
    if inputs := facts.get("inputs"):
        told["inputs"] = inputs
    return told


def requested(session: Session, generator: np.random.Generator, *, batch: int, prompt: int) -> AnyArray:
    """Input of one request: tokens (batch, prompt), images (batch, C, Y, X), or items to rank."""
    if image := session.facts.get("image"):
        if numbers := session.facts.get("numbers"):
            return generator.integers(0, numbers, (batch, *image))
        return generator.standard_normal((batch, *image), dtype=np.float32)
    if request := session.facts.get("request"):
        shape = (batch, request["history"] + request["candidates"], 1)
        items = generator.integers(1, request["items"] + 1, shape)
        return np.concatenate((items, generator.integers(0, request["tags"] + 1, (*shape[:2], request["bag"]))), axis=2)
    return generator.integers(0, session.vocab_size, (batch, prompt))


def _limit(what: int, amount: float) -> None:
    """Sets a resource limit of this process, at most to the hard limit."""
    hard = resource.getrlimit(what)[1]
    wanted = int(amount) if hard == resource.RLIM_INFINITY else min(int(amount), hard)
    resource.setrlimit(what, (wanted, hard))


class Loop:
    """Runs and times prefills and decode steps; if ``steps`` is 0, only prefills.

    Each time includes the choice of the next token, unless a session that times itself leaves it out.
    """

    def __init__(self, session: Session, tokens: AnyArray, *, steps: int) -> None:
        self._session, self._tokens, self._steps = session, tokens, steps
        self._clock = clock_of(session)
        self._logits: AnyArray = np.zeros((1, 1), np.float32)
        self.clear()

    @property
    def generates(self) -> bool:
        """Whether requests have decode steps."""
        return self._steps > 0

    def cycle(self, *, decode: bool = True) -> None:
        """One request: the prompt and then, if ``decode``, all new tokens, chosen greedily."""
        session, cpu, clock = self._session, time.process_time, self._clock
        if isinstance(session, Elsewhere):
            self._timed_elsewhere(session, steps=self._steps if decode else 0)
            return
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
            self.tpot_at_s.append(start)
        self._logits = logits

    def _timed_elsewhere(self, session: Elsewhere, *, steps: int) -> None:
        start = self._clock()
        found = session.timed(self._tokens, steps)
        self._logits, prompt_s = found.output, start + sum(found.prefill_s)
        self.ttft_s += found.prefill_s
        self.tpot_s += found.step_s
        self.ttft_cpu_s += found.prefill_cpu_s
        self.tpot_cpu_s += found.step_cpu_s
        self.tpot_at_s += [prompt_s + passed for passed in itertools.accumulate(found.step_s, initial=0.0)][:-1]

    def check(self) -> None:
        """Checks that the last logits are finite."""
        if not np.isfinite(self._logits).all():
            raise MeasurementError("the model's logits are not finite numbers")

    def clear(self) -> None:
        """Drops all samples."""
        self.ttft_s: list[float] = []
        self.tpot_s: list[float] = []
        self.ttft_cpu_s: list[float] = []  # processor time of this process for the same samples
        self.tpot_cpu_s: list[float] = []
        self.tpot_at_s: list[float] = []  # start time of each decode step


def readings(
    before: sensors.LoadReading, after: sensors.LoadReading, *, threads: int, cpus: int
) -> dict[str, float | None]:
    """Differences between two readings of the counters, named as ``verdict.judge`` expects."""
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


def warm_up(loop: Loop, limit_s: float) -> bool:
    """Runs until both phases are steady (at least two cycles, at most about ``limit_s``); returns whether they are.

    Steady means that the median decode steps of two consecutive cycles agree within 3 %, and the last prefill was not
    an outlier.
    """
    started = time.perf_counter()
    for _ in range(_FIRST_CYCLES):
        loop.cycle()
        loop.check()
    previous = float("inf")
    prefills: list[float] = []
    while time.perf_counter() - started < limit_s:
        loop.clear()
        loop.cycle()
        prefills += loop.ttft_s
        timed = loop.tpot_s or loop.ttft_s
        median = sorted(timed)[len(timed) // 2]
        ordered = sorted(prefills)
        prefill_steady = len(prefills) < 2 or prefills[-1] < (1 + 5 * _STEADY) * ordered[len(ordered) // 2]
        if abs(median / previous - 1) < _STEADY and prefill_steady:
            return True
        previous = median
    return False


if __name__ == "__main__":
    sys.exit(main())
