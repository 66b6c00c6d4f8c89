"""Measuring a model in a fresh process, watched: a crash, a hang or a busy machine never passes as a number."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from chipwise.core.errors import MeasurementError, UnknownName
from chipwise.hardware.detect import detect
from chipwise.ops.workload import Workload
from chipwise.profile import load
from chipwise.profile.backends import RUNTIMES
from chipwise.profile.measurement import Measurement, percentile
from chipwise.profile.verdict import Verdict, judge, spread

WARM_UP_S = 0.5
MIN_PREFILLS = 30


def measure(
    model: str | Path,
    workload: Workload,
    *,
    runtime: str = "onnxruntime",
    threads: int = 1,
    repeats: int = 200,
    prefills: int = MIN_PREFILLS,
    seconds: float = 1.5,
    timeout_s: float = 60.0,
    attempts: int = 3,
    memory_limit_bytes: int | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Measurement:
    """Times ``model`` under ``workload``; an attempt on a busy machine is repeated, and the quietest is returned.

    Args:
        model: The exported file.
        workload: Prompt and new tokens of one request.
        runtime: A name in the table of runtimes.
        threads: Threads of the runtime; as many cores are reserved by affinity, the idlest ones.
        repeats: Fewest decode steps that are timed.
        prefills: Fewest prefills that are timed.
        seconds: Fewest seconds that are timed.
        timeout_s: Most seconds that one attempt may take, loading included.
        attempts: Most attempts to find the machine quiet.
        memory_limit_bytes: Most address space of the process; nine tenths of the free memory unless given.
        seed: Of the prompt's tokens.
        options: What the runtime's ``open`` takes beyond the common arguments.

    Raises:
        MeasurementError: The model cannot be loaded, hangs, crashes, runs out of memory or gives no finite logits.
        UnknownName: There is no such runtime.
    """
    if runtime not in RUNTIMES.names():
        raise UnknownName("runtime", runtime, RUNTIMES.names())
    best: tuple[Verdict, dict[str, Any], tuple[int, ...]] | None = None
    for _ in range(max(1, attempts)):
        cpus = load.idlest_cpus(threads)
        request = {
            "model": str(Path(model).resolve()),
            "runtime": runtime,
            "threads": threads,
            "cpus": list(cpus),
            "prompt_tokens": workload.prompt_tokens,
            "new_tokens": workload.new_tokens,
            "batch": workload.batch,
            "min_steps": repeats,
            "min_prefills": prefills,
            "seconds": seconds,
            "warm_up_s": WARM_UP_S,
            "memory_limit_bytes": memory_limit_bytes or int(0.9 * psutil.virtual_memory().available),
            "seed": seed,
            "options": dict(options or {}),
        }
        reply = ask_worker(request, timeout_s=timeout_s, threads=threads)
        spreads = [s for key in ("anchor_compute_s", "anchor_memory_s") if (s := spread(reply[key])) is not None]
        reply["readings"]["anchor_spread"] = max(spreads, default=None)
        verdict = judge(reply["readings"])
        if best is None or verdict.score < best[0].score:
            best = (verdict, reply, cpus)
        if verdict.clean:
            break
    assert best is not None
    return _measurement(*best, model=Path(model), workload=workload, runtime=runtime, threads=threads)


def measure_alternately(
    models: Sequence[str | Path], workload: Workload, *, rounds: int = 3, **settings: Any
) -> list[Measurement]:
    """Measures every model ``rounds`` times in turns (A B, B A, …), so that drift of the machine hits all alike.

    All rounds' samples of a model are joined; it is clean when every round was. ``settings`` go to :func:`measure`.
    """
    order = list(range(len(models)))
    found: list[list[Measurement]] = [[] for _ in models]
    for turn in range(rounds):
        for i in order if turn % 2 == 0 else reversed(order):
            found[i].append(measure(models[i], workload, **settings))
    return [join(parts) for parts in found]


def join(parts: Sequence[Measurement]) -> Measurement:
    """Several measurements of one model as one, with all samples."""
    first = parts[0]
    memory = [p.peak_memory_bytes for p in parts if p.peak_memory_bytes is not None]
    reasons = tuple(dict.fromkeys(reason for p in parts for reason in p.reasons))
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
        clean=all(p.clean for p in parts),
        reasons=reasons,
        environment={"rounds": [dict(p.environment) for p in parts]},
    )


def ask_worker(request: Mapping[str, Any], *, timeout_s: float, threads: int) -> dict[str, Any]:
    """Runs ``profile/worker.py`` on ``request`` in a fresh process and returns its reply.

    Raises:
        MeasurementError: The process hung, died, answered nonsense or reported an error.
    """
    environment = os.environ | {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    child = subprocess.Popen(
        [sys.executable, "-m", "chipwise.profile.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
        text=True,
    )
    model = request["model"]
    try:
        answer, complaint = child.communicate(json.dumps(request), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise MeasurementError(f"{model}: no answer within {timeout_s:g} s; the measuring process was ended") from None
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    tail = " | ".join(complaint.strip().splitlines()[-3:])
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        raise MeasurementError(f"{model}: the measuring process was ended by {name}. {tail}")
    if child.returncode:
        raise MeasurementError(f"{model}: the measuring process failed (code {child.returncode}). {tail}")
    try:
        reply: dict[str, Any] = json.loads(answer)
    except ValueError:
        raise MeasurementError(f"{model}: the measuring process answered nonsense: {answer[:100]!r}") from None
    if "error" in reply:
        raise MeasurementError(f"{model}: {reply['error']}")
    return reply


def _measurement(
    verdict: Verdict,
    reply: dict[str, Any],
    cpus: tuple[int, ...],
    *,
    model: Path,
    workload: Workload,
    runtime: str,
    threads: int,
) -> Measurement:
    machine = detect()
    processor = {  # with one thread, what a sample would take if nothing else ran on its core
        f"{quantity}_cpu_p{share}": percentile(tuple(reply[f"{quantity}_cpu_s"]), share / 100)
        for quantity in ("ttft", "tpot")
        for share in (50, 99)
    }
    anchors = {key: percentile(tuple(reply[key]), 0.5) for key in ("anchor_compute_s", "anchor_memory_s")}
    return Measurement(
        design=reply["facts"]["design"],
        name=reply["facts"]["name"] or model.stem,
        runtime=runtime,
        runtime_version=reply["runtime_version"],
        threads=threads,
        workload=workload,
        device=machine.name,
        ttft_s=tuple(reply["ttft_s"]),
        tpot_s=tuple(reply["tpot_s"]),
        cpu_s=reply["cpu_s"],
        peak_memory_bytes=reply["peak_memory_bytes"],
        clean=verdict.clean,
        reasons=verdict.reasons,
        environment={
            **reply["readings"],
            **anchors,
            **(processor if threads == 1 else {}),
            "wall_s": reply["wall_s"],
            "cpus": list(cpus),
            "load_before": reply["load_before"],
            "load_after": reply["load_after"],
            "python": sys.version.split()[0],
            "kernel": os.uname().release,
        },
    )
