"""Measures a model in a fresh process, and detects crashes, hangs and a busy machine."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol, TypedDict, TypeVar, Unpack

import numpy as np
import psutil

from chipwise.core.digest import plain
from chipwise.core.statistics import two_speeds
from chipwise.core.workers import HUGE_PAGES, WorkerPool, ask_once
from chipwise.deploy.export.exporters import reference_model
from chipwise.deploy.measure import sensors
from chipwise.deploy.measure.drift import Drift, drift
from chipwise.deploy.measure.measurement import Measurement
from chipwise.deploy.measure.messages import Reply, Request
from chipwise.deploy.measure.reference_work import medians, own_speeds
from chipwise.deploy.measure.remote import check_connection, prepare_remote
from chipwise.deploy.measure.verdict import Verdict, judge, spread
from chipwise.deploy.runtimes import NEEDS, RUNTIMES, loading_s, measured_instead
from chipwise.errors import InputError, MeasurementError, UnknownName, Unreachable, WorkerError
from chipwise.hardware.detect import detect
from chipwise.model.ops.workload import Workload

T = TypeVar("T")
WARM_UP_S = 0.5
MIN_PREFILLS = 30
MOST_SHARE = 0.4  # share of an attempt's time limit for timing; the rest is for loading and warming up
WORKER, NAME = [sys.executable, "-m", "chipwise.deploy.measure.worker"], "measuring process"
SILENCE_S = 120.0  # after this time, plus that for loading, a process that is kept for many models counts as hung
SPREAD_OF = ("compute_s", "memory_s", "reference_decode_s")
LEAST_STEP_S = 1e-5  # for shorter steps, reading two clocks would take a noticeable share
S_PER_BYTE = 1e-7  # extra time for large models: loading, warming up, and a minimum number of passes


class Ask(Protocol):
    """Sends a request to a measuring process and returns its reply."""

    def __call__(self, request: Request, *, timeout_s: float, threads: int, remote: str | None = None) -> Reply:
        """See :func:`ask_worker`."""
        ...


class Timing(TypedDict, total=False):
    """How requests are timed.

    Attributes:
        repeats: Minimum number of timed decode steps; fewer for slow models, as many as the time limit allows. Default:
            200.
        prefills: Minimum number of timed prefills; fewer for slow models. Default: ``MIN_PREFILLS``.
        seconds: Minimum duration of timing. Default: 1.5.
        memory_limit_bytes: Limit on the address space of the process; 90 % of the free memory unless given.
        seed: Random seed of the prompt's tokens. Default: 0.
        options: Additional arguments of the runtime's ``open``.
    """

    repeats: int
    prefills: int
    seconds: float
    memory_limit_bytes: int | None
    seed: int
    options: Mapping[str, object] | None


class Settings(Timing, total=False):
    """Arguments of :func:`measure` by name."""

    runtime: str
    threads: int
    timeout_s: float
    attempts: int
    calibrated: Mapping[str, float] | None
    remote: str | None


def measure(
    model: str | Path,
    workload: Workload,
    *,
    runtime: str = "onnxruntime",
    threads: int = 1,
    timeout_s: float = 60.0,
    attempts: int = 3,
    calibrated: Mapping[str, float] | None = None,
    remote: str | None = None,
    ask: Ask | None = None,
    **timing: Unpack[Timing],
) -> Measurement:
    """Times ``model`` under ``workload``. Attempts on a busy machine are repeated; the quietest attempt is returned.

    Reference work (arithmetic, memory, and the runtime's reference model) is timed between requests.

    Args:
        model: The exported file.
        workload: Prompt and new tokens of one request.
        runtime: A name in the table of runtimes.
        threads: Threads of the runtime. The process is pinned to the same number of cores, the idlest ones.
        timeout_s: Time limit of one attempt, including loading; large models and runtimes that compile get more.
        attempts: Maximum number of attempts on a busy machine.
        calibrated: Reference times of this machine's profile, to compute the measurement's drift.
        remote: ``user@host`` to measure on, reached by ssh; see ``remote.py``.
        ask: Sends the request to the measuring process. Default: :func:`ask_worker`.
        timing: See :class:`Timing`.

    Raises:
        MeasurementError: The model cannot be loaded, hangs, crashes, runs out of memory or gives logits that are not
            finite.
        UnknownName: No such runtime is known.
        InputError: There are more threads than cores.
    """
    if remote is None:
        check_threads(threads)
    if runtime not in RUNTIMES:
        raise UnknownName("runtime", runtime, RUNTIMES.names(), said=measured_instead(runtime))
    timeout_s += loading_s(runtime) + int(S_PER_BYTE * stored_size(Path(model)))
    tries: list[tuple[Verdict, Reply]] = []
    for _ in range(max(1, attempts)):
        request = make_request(Path(model), workload, runtime=runtime, threads=threads, timeout_s=timeout_s, **timing)
        reply = (ask or ask_worker)(request, timeout_s=timeout_s, threads=threads, remote=remote)
        verdict = judge(readings_of(reply, calibrated))
        tries.append((verdict, reply))
        if verdict.clean:
            break
    _, best = min(tries, key=lambda each: each[0].rank)
    return measurement_of(
        best, model=Path(model), workload=workload, runtime=runtime, threads=threads, calibrated=calibrated
    )


def make_request(
    model: Path, workload: Workload, *, runtime: str, threads: int, timeout_s: float, **timing: Unpack[Timing]
) -> Request:
    """The request for ``worker.py``, on the idlest cores. Arguments are those of :func:`measure`."""
    reference = reference_model(runtime)
    return {
        "model": str(model.resolve()),
        "runtime": runtime,
        "threads": threads,
        "cpus": list(sensors.idlest_cpus(threads)),
        "prompt_tokens": workload.prompt_tokens,
        "new_tokens": workload.new_tokens,
        "batch": workload.batch,
        "min_steps": timing.get("repeats", 200),
        "min_prefills": timing.get("prefills", MIN_PREFILLS),
        "seconds": timing.get("seconds", 1.5),
        "most_s": MOST_SHARE * timeout_s,
        "warm_up_s": WARM_UP_S,
        "memory_limit_bytes": timing.get("memory_limit_bytes") or int(0.9 * psutil.virtual_memory().available),
        "cpu_limit_s": math.ceil(timeout_s * (threads + 1)) + 1,
        "seed": timing.get("seed", 0),
        "options": dict(timing.get("options") or {}),
        "reference": None if reference is None else str(reference),
    }


def readings_of(reply: Reply, calibrated: Mapping[str, float] | None) -> dict[str, float | None]:
    """Readings for the verdict: the reply's readings, and readings computed from its samples and reference work."""
    steps, steps_cpu = reply["tpot_s"], reply["tpot_cpu_s"]
    if not steps:  # an encoder: use its passes over the text instead of decode steps
        steps, steps_cpu = reply["ttft_s"], reply["ttft_cpu_s"]
    spreads = [wide for name in SPREAD_OF if (wide := spread(reply["reference_s"].get(name, []))) is not None]
    middle = float(np.quantile(steps, 0.5))
    processor = float(np.quantile(steps_cpu, 0.5)) if steps_cpu else 0.0
    split = two_speeds(steps)
    since = drift(own_speeds(reply["reference_s"]), calibrated) if calibrated else None
    alone = reply["readings"].get("lost") is not None  # with one thread, processor time is comparable to wall time
    return {
        **reply["readings"],
        "reference_spread": max(spreads, default=None),
        "waited": middle / processor if alone and processor > LEAST_STEP_S else None,
        "dispersion": float(np.quantile(steps, 0.9)) / middle,
        "two_speeds": split.ratio if split is not None else None,
        "drift": since.size if since is not None else None,
    }


def measure_alternately(
    models: Sequence[str | Path],
    workload: Workload,
    *,
    rounds: int = 3,
    extra_rounds: int = 0,
    **settings: Unpack[Settings],
) -> list[Measurement | MeasurementError]:
    """Measures every model ``rounds`` times in turns (A B, B A, …), so that drift affects all of them equally.

    Models with fewer than ``rounds`` clean measurements are measured again, for at most ``extra_rounds``. Then each
    model's ``rounds`` quietest measurements are joined; the result is clean if all of them are. A model that fails once
    gets its error instead of a measurement and is not tried again. ``settings`` are passed to :func:`measure`.
    """
    found: list[list[Measurement]] = [[] for _ in models]
    failed: dict[int, MeasurementError] = {}
    for turn in range(rounds + extra_rounds):
        order = [i for i in range(len(models)) if i not in failed and sum(p.clean for p in found[i]) < rounds]
        for i in order if turn % 2 == 0 else reversed(order):
            try:
                found[i].append(measure(models[i], workload, **settings))
            except MeasurementError as error:
                failed[i] = error
    quietest = [sorted(parts, key=lambda part: part.noise_level)[:rounds] for parts in found]
    return [failed[i] if i in failed else join(quietest[i]) for i in range(len(models))]


def stored_size(model: Path) -> int:
    """Bytes of an exported model, including an external weight file of an ONNX graph; 0 if there is no such file."""
    files = (model, model.with_name(f"{model.name}.data"))
    return sum(path.stat().st_size for path in files if path.is_file())


def check_threads(threads: int) -> None:
    """Checks that this machine has a core for each thread.

    Raises:
        InputError: The machine has fewer cores, or ``threads`` is not positive.
    """
    cores = os.cpu_count() or 1
    if not 1 <= threads <= cores:
        raise InputError(f"threads: this machine has {cores} core{'s' if cores > 1 else ''}, not {threads}")


def join(parts: Sequence[Measurement]) -> Measurement:
    """Joins measurements of one model, with all samples.

    Each reason for being unclean appears once, with the value in the noisiest measurement that has this reason.
    """
    first = parts[0]
    memory = [p.peak_memory_bytes for p in parts if p.peak_memory_bytes is not None]
    by_loudness = sorted(parts, key=lambda part: part.noise_level)
    reasons = {re.sub(r"\d[\d.,]*", "", reason): reason for p in by_loudness for reason in p.reasons}
    return Measurement(
        design=first.design,
        name=first.name,
        runtime=first.runtime,
        runtime_version=first.runtime_version,
        threads=first.threads,
        workload=first.workload,
        device=first.device,
        ttft_s=tuple(s for p in parts for s in p.ttft_s),
        tpot_s=tuple(s for p in parts for s in p.tpot_s),
        cpu_s=sum(p.cpu_s for p in parts),
        peak_memory_bytes=max(memory, default=None),
        energy_j=None if None in (found := [p.energy_j for p in parts]) else sum(j for j in found if j is not None),
        drift=_joint_drift([p.drift for p in parts if p.drift is not None]),
        own_drift=_joint_drift([p.own_drift for p in parts if p.own_drift is not None]),
        clean=all(p.clean for p in parts),
        reasons=tuple(reasons.values()),
        environment={"rounds": [dict(p.environment) for p in parts]},
        steps_per_sample=max(p.steps_per_sample for p in parts),
    )


def _joint_drift(found: Sequence[Drift]) -> Drift | None:
    """The geometric mean of drifts, with the widest interval."""
    if not found:
        return None
    return Drift(
        prefill_slowdown=math.exp(sum(math.log(d.prefill_slowdown) for d in found) / len(found)),
        decode_slowdown=math.exp(sum(math.log(d.decode_slowdown) for d in found) / len(found)),
        log_halfwidth=max(d.log_halfwidth for d in found),
    )


def ask_worker(request: Request, *, timeout_s: float, threads: int, remote: str | None = None) -> Reply:
    """Runs ``deploy/measure/worker.py`` on ``request`` in a fresh process, here or on ``remote``; returns its reply.

    Raises:
        MeasurementError: The process hung, died, gave no valid reply or reported an error.
        Unreachable: The other machine cannot be reached, or lacks the runtime.
    """
    command, model = WORKER, request["model"]
    if remote is not None:
        request, command = prepare_remote(request, host=remote)
    try:
        found = ask_once(command, request, timeout_s=timeout_s, name=NAME, environment=_environment(threads))
    except WorkerError as error:
        if remote is not None:
            check_connection(remote, error.ended_with, str(error))
        raise MeasurementError(f"{model}: {error}") from None
    return _checked(plain(found), model, remote)


def _checked(reply: Reply, model: str, remote: str | None = None) -> Reply:
    """Returns ``reply``; raises the error that it reports, if any."""
    if reply.get("lacks"):
        raise Unreachable(reply["error"] if remote is None else f"{remote}: {reply['error']}")
    if "error" in reply:
        name = f"{model}: "
        raise MeasurementError(name + reply["error"].removeprefix(name))
    return reply


def _environment(threads: int) -> dict[str, str]:
    """Returns environment variables that set the number of threads and turn huge pages off."""
    return {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads), HUGE_PAGES: "0"}


@contextmanager
def staying(runtime: str, threads: int) -> Iterator[Ask]:
    """Yields a function that runs measurements: each in a fresh process, or several in one if starting is slow.

    In a process with several models, only the first model's memory is known, because each model leaves memory in use.
    """
    count = NEEDS[runtime].models_per_start if runtime in NEEDS else 1
    if count == 1:
        yield ask_worker
        return
    with closing(_Staying(threads, count=count, silence_s=SILENCE_S + loading_s(runtime))) as asked:
        yield asked


class _Staying:
    """See :func:`staying`. All processes use the same cores, because a process's children are pinned to its cores."""

    def __init__(self, threads: int, *, count: int, silence_s: float) -> None:
        self._threads, self._count, self._silence_s = threads, count, silence_s
        self._cpus, self._asked = list(sensors.idlest_cpus(threads)), 0
        self._pool: WorkerPool | None = None

    def __call__(self, request: Request, *, timeout_s: float, threads: int, remote: str | None = None) -> Reply:
        first = self._asked % self._count == 0
        if first or self._pool is None:
            self.close()
            self._pool = WorkerPool(
                [*WORKER, "--stay"], 1, name=NAME, silence_s=self._silence_s, environment=_environment(self._threads)
            )
        self._asked += 1
        self._pool.submit({**request, "cpus": self._cpus})
        found = next(event for event in self._pool.events() if event.kind != "progress")
        told: Reply = {"error": found.data["message"]} if found.kind == "failed" else plain(found.data)
        reply = _checked(told, request["model"])
        return reply if first else {**reply, "peak_memory_bytes": None}

    def close(self) -> None:
        """Ends the current process."""
        if self._pool is not None:
            self._pool.close()


def measurement_of(
    reply: Reply,
    *,
    model: Path,
    workload: Workload,
    runtime: str,
    threads: int,
    calibrated: Mapping[str, float] | None = None,
) -> Measurement:
    """Converts the worker's reply to a Measurement, with the verdict on its readings."""
    seen = readings_of(reply, calibrated)
    verdict = judge(seen)
    here = "machine" not in reply  # the worker describes its machine if it is not this one
    machine = detect()
    processor = {  # with one thread: the time of a sample if nothing else ran on its core
        f"{quantity}_cpu_p{share}": float(np.quantile(samples, share / 100))
        for quantity, samples in (("ttft", reply["ttft_cpu_s"]), ("tpot", reply["tpot_cpu_s"]))
        for share in (50, 99)
        if samples
    }
    reference_s, own_s = medians(reply["reference_s"]), own_speeds(reply["reference_s"])
    return Measurement(
        design=reply["facts"]["design"],
        name=reply["facts"]["name"] or model.stem,
        runtime=runtime,
        runtime_version=reply["runtime_version"],
        threads=threads,
        workload=workload,
        device=machine.name if here else reply["machine"],
        ttft_s=tuple(reply["ttft_s"]),
        tpot_s=tuple(reply["tpot_s"]),
        cpu_s=reply["cpu_s"],
        peak_memory_bytes=reply["peak_memory_bytes"],
        energy_j=reply["energy_j"],
        clean=verdict.clean,
        reasons=verdict.reasons,
        drift=drift(reference_s, calibrated) if calibrated else None,
        own_drift=drift(own_s, calibrated) if calibrated else None,
        steps_per_sample=reply.get("steps_per_sample", 1),
        environment={
            **seen,
            "reference_s": reference_s,
            "reference_own_s": own_s,
            **(processor if threads == 1 else {}),
            "wall_s": reply["wall_s"],
            "cpus": list(reply.get("cpus", ())),
            "load_before": reply["load_before"],
            "load_after": reply["load_after"],
            "clock_hz_before": reply["clock_hz_before"],
            "clock_hz_after": reply["clock_hz_after"],
            "temperature_c": reply["temperature_c"],
            "instructions": machine.instructions if here else reply.get("instructions"),
            **({"python": sys.version.split()[0], "kernel": os.uname().release} if here else {}),
            **({"energy_from": source} if (source := reply.get("energy_from")) else {}),
            **({"image": image} if (image := reply["facts"].get("image")) else {}),
            **({"inputs": inputs} if (inputs := reply["facts"].get("inputs")) else {}),
            **({"audio_s": seconds} if (seconds := reply["facts"].get("seconds")) else {}),
            **reply.get("settings", {}),
        },
    )
