"""Calibration: this machine's rates, measured in the runtime that will serve, in under a minute.

Small graphs give the rates of each kind of node (``microbench.py``); whole random models give what a pass, a process
and the tail cost beyond their nodes; and each of them, predicted without itself, says how far off predictions are.
"""

from __future__ import annotations

import math
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from chipwise.core.errors import MeasurementError, Unsupported
from chipwise.core.workers import WorkerPool
from chipwise.cost.pricing import STREAMS, s_per_byte
from chipwise.cost.terms import terms
from chipwise.hardware.detect import detect
from chipwise.hardware.device import Curve, MachineProfile, PassCost, Tail
from chipwise.ops import Phase, Workload
from chipwise.profile import load
from chipwise.profile.drift import drift
from chipwise.profile.exporting import check_exporter, export_for
from chipwise.profile.fit import fit_relative, rising
from chipwise.profile.harness import measure
from chipwise.profile.measurement import Measurement
from chipwise.profile.microbench import Case, cases
from chipwise.profile.refit import Sample, cross_check, fit_memory, predict_seconds, prepare, refit
from chipwise.profile.samples import WEIGHTS, random_designs
from chipwise.spec import Design

Progress = Callable[[str, float], None]
KNOTS_BYTES = (2.5e5, 1e6, 2e6, 4e6, 8e6, 1.6e7, 2.3e7, 3.2e7, 6.4e7)
WORKLOAD = Workload(prompt_tokens=64, new_tokens=64)
ROUNDS = 2  # of all small graphs, in different orders: a slow moment of the machine must hit a case twice to count
CASE_S = 0.015
CASE_SILENCE_S = 120.0  # a case that takes longer hangs
MODEL_S = 1.35  # starting, warming up and timing one whole model
CASES_S = 16.0
LEAST_MODELS, MOST_MODELS = 12, 120
DEFAULT_S = 45.0
LEAST_SCALE = 0.05  # of its nodes' own time that a pass takes
NODES_TIMED = ("onnxruntime", "fake")  # runtimes whose own small graphs are timed (the fake one stands for any)


def calibrate(
    *,
    runtime: str = "onnxruntime",
    threads: int = 1,
    seconds: float = DEFAULT_S,
    seed: int = 0,
    progress: Progress | None = None,
    base: MachineProfile | None = None,
) -> MachineProfile:
    """Measures this machine and returns its profile; ``progress`` hears a phase's name and the share done.

    Rates of single nodes are timed in ONNX Runtime. Other runtimes are calibrated from whole models alone
    (``calibrate_models.py``), or with a ``base``: its rates then say what this machine's cores and memory do, and
    factors fitted to whole models in ``runtime`` itself say what that runtime makes of them.

    Args:
        runtime: The runtime that will serve.
        threads: Its threads.
        seconds: What is aimed at on an idle machine: it sets how many whole models are measured (60 at least, where
            they alone are measured).
        seed: Of the models.
        progress: Told of every step.
        base: A profile of this machine whose node rates are taken instead of timing them.

    Raises:
        MeasurementError: A measuring process failed.
        UnknownName: There is no such runtime.
        Unsupported: Nothing here writes models for it.
    """
    check_exporter(runtime)
    if base is None and runtime not in NODES_TIMED:
        from chipwise.profile.calibrate_models import calibrate_models

        return calibrate_models(runtime=runtime, threads=threads, seconds=seconds, seed=seed, progress=progress)
    tell = progress or (lambda phase, share: None)
    fitted: Mapping[str, Mapping[str, float]]
    curves: Mapping[str, Curve]
    if base is None:
        fitted, curves = fit_terms(time_cases(cases(), threads=threads, tell=tell))
    else:
        fitted, curves = base.terms, base.curves
    count = min(MOST_MODELS, max(LEAST_MODELS, round((seconds - (CASES_S if base is None else 0.0)) / MODEL_S)))
    measured = list(_measure_wholes(random_designs(count, seed=seed), runtime=runtime, threads=threads, tell=tell))
    anchors = typical_anchors([whole.measured for whole in measured])
    wholes = [on_footing(whole, anchors) for whole in measured]
    busy = sum(not whole.measured.clean for whole in wholes)
    profile = MachineProfile(
        machine=detect(),
        runtime=runtime,
        runtime_version=wholes[0].measured.runtime_version,
        threads=threads,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        terms=fitted,
        curves=curves,
        passes={phase.value: PassCost(call_s=0.0, per_logit_s=0.0, scale=1.0) for phase in Phase},
        memory=fit_memory(wholes),
        tails={phase.value: Tail(ratio=1.0, extra_s=0.0) for phase in Phase},  # until they are fitted below
        checks={},
        roofs=_roofs(curves),
        peaks={weights: 2 / fitted[f"matmul.{weights}.matrix"]["products"] for weights in WEIGHTS},
        clean=not busy,
        notes=(f"{busy} of {count} models were timed on a busy machine; calibrate again when idle",) if busy else (),
        anchors=anchors,
    )
    profile = replace(profile, passes=fit_passes(profile, wholes))
    seen = prepare(profile, wholes)
    lessons = {phase.value: table.lessons() for phase, table in seen.tables.items()}
    return replace(refit(profile, seen), checks=cross_check(profile, seen), lessons=lessons)


def typical_anchors(measured: Sequence[Measurement]) -> dict[str, float]:
    """The median of each anchor over all models, those timed on a quiet machine if there are five: where drift is 1."""
    quiet = [item for item in measured if item.clean]
    found = [item.environment["anchors"] for item in (quiet if len(quiet) >= 5 else measured)]
    return {name: float(np.median([item[name] for item in found if name in item])) for name in found[0]}


def on_footing(whole: Sample, anchors: Mapping[str, float]) -> Sample:
    """``whole`` with its drift from ``anchors``."""
    since = drift(whole.measured.environment["anchors"], anchors)
    return replace(whole, measured=replace(whole.measured, drift=since))


def time_cases(chosen: Sequence[Case], *, threads: int, tell: Progress) -> list[tuple[Case, float]]:
    """Seconds of one run of each case: the lesser of the rounds' medians."""
    best = [math.inf] * len(chosen)
    for turn in range(ROUNDS):
        order = list(range(len(chosen)))
        random.Random(turn).shuffle(order)
        setup = {"cpus": list(load.idlest_cpus(threads)), "threads": threads, "seconds": CASE_S}
        with WorkerPool(
            [sys.executable, "-m", "chipwise.profile.microbench"],
            1,
            name="measuring process",
            silence_s=CASE_SILENCE_S,
            setup=setup,
            environment={},
        ) as pool:
            places = {pool.submit(asdict(chosen[i])): i for i in order}
            for done, event in enumerate(pool.events(), start=1):
                if event.kind == "failed":
                    raise MeasurementError(f"calibration: {event.data['message']}")
                best[places[event.job]] = min(best[places[event.job]], float(event.data))
                tell("nodes", (turn * len(chosen) + done) / (ROUNDS * len(chosen)))
    return list(zip(chosen, best, strict=True))


def fit_terms(
    timed: Sequence[tuple[Case, float]],
) -> tuple[dict[str, dict[str, float]], dict[str, Curve]]:
    """Rates of every kind of node, and the curves of streamed bytes, from timed cases."""
    call_s = _call_seconds(timed)
    groups: dict[str, list[tuple[dict[str, float], float, float]]] = {}
    for case, seconds in timed:
        amounts: dict[str, float] = {}
        streamed = 0.0
        for term in (found for op in case.ops() for found in terms(op)[:1]):
            model, streamed = term.model, streamed + term.streamed_bytes
            for name, amount in term.amounts.items():
                amounts[name] = amounts.get(name, 0.0) + amount
        groups.setdefault(model, []).append((amounts, streamed, max(seconds - call_s, 0.1 * seconds)))
    fitted: dict[str, dict[str, float]] = {}
    curves: dict[str, Curve] = {}
    for model, rows in groups.items():
        names = sorted(rows[0][0])
        features = np.array([[amounts[name] for name in names] for amounts, _, _ in rows])
        seconds_of = np.array([seconds for _, _, seconds in rows])
        if model in STREAMS:
            streamed_of = np.array([streamed for _, streamed, _ in rows])
            basis = rising(KNOTS_BYTES, streamed_of) * streamed_of[:, None]
            rates = fit_relative(np.hstack([features, basis]), seconds_of)
            rise = np.cumsum(rates[len(names) :])
            curves[model] = Curve(working_set_bytes=KNOTS_BYTES, s_per_byte=tuple(float(value) for value in rise))
        else:
            rates = fit_relative(features, seconds_of)
        fitted[model] = {name: float(rate) for name, rate in zip(names, rates, strict=False)}
    return fitted, curves


def _call_seconds(timed: Sequence[tuple[Case, float]]) -> float:
    """What running a graph costs before its first node: from two lengths of the same chain of tiny nodes."""
    chains = {case.count: seconds for case, seconds in timed if case.kind == "relu" and case.k == 16}
    (short, short_s), (long, long_s) = sorted(chains.items())
    node_s = max(0.0, (long_s - short_s) / (long - short))
    return max(0.0, short_s - short * node_s)


def _measure_wholes(designs: Sequence[Design], *, runtime: str, threads: int, tell: Progress) -> Iterator[Sample]:
    with tempfile.TemporaryDirectory(prefix="chipwise-") as folder:
        for i, design in enumerate(designs):
            try:
                path = export_for(runtime, design, Path(folder))
            except Unsupported:  # a format that this runtime has not: it is calibrated without it
                design = replace(design, weights="fp32")
                path = export_for(runtime, design, Path(folder))
            measured = measure(
                path,
                WORKLOAD,
                runtime=runtime,
                threads=threads,
                repeats=126,
                prefills=12,
                seconds=0.3,
                timeout_s=60,
                attempts=1,
            )
            yield Sample(design=design, measured=measured)
            tell("models", (i + 1) / len(designs))


def fit_passes(profile: MachineProfile, wholes: Sequence[Sample]) -> dict[str, PassCost]:
    """What a pass costs beyond its nodes, from whole models. The profile's own passes must be neutral.

    Calling the runtime and choosing a token are the same work in both phases, so they are fitted to both at once: the
    shortest passes, which are steps, tell them best.
    """
    phases = tuple(Phase)
    nodes = np.array(
        [[predict_seconds(profile, w.design, phase, WORKLOAD, logits=0) for w in wholes] for phase in phases]
    )
    measured = np.array([[whole.seconds(phase, 0.5) for whole in wholes] for phase in phases])
    shared = np.array([[1.0, whole.design.arch.vocab_size] for whole in wholes] * len(phases))
    by_phase = np.zeros((len(phases), len(wholes), len(phases)))
    for i in range(len(phases)):
        by_phase[i, :, i] = nodes[i]
    call, logit, *scales = fit_relative(np.hstack([shared, by_phase.reshape(len(shared), -1)]), measured.ravel())
    if min(scales) < LEAST_SCALE:  # nodes say little here, but an operator never takes no time
        scales = [max(LEAST_SCALE, scale) for scale in scales]
        within = np.array(scales)[:, None] * nodes
        call, logit = fit_relative(shared, np.maximum(measured - within, 0.1 * measured).ravel())
    return {
        phase.value: PassCost(call_s=float(call), per_logit_s=float(logit), scale=float(scale))
        for phase, scale in zip(phases, scales, strict=True)
    }


def _roofs(curves: Mapping[str, Curve]) -> dict[str, float]:
    """Bandwidth of the caches and of memory, as FP32 weights stream through them."""
    curve = curves["matmul.fp32.vector"]
    places = {"private caches": KNOTS_BYTES[0], "shared cache": KNOTS_BYTES[4], "DRAM": KNOTS_BYTES[-1]}
    return {name: 1 / float(s_per_byte(curve, working_set)) for name, working_set in places.items()}
