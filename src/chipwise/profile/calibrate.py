"""Calibration: this machine's rates, measured in the runtime that will serve, in under a minute.

Small graphs give the rates of each kind of node (``microbench.py``); whole random models give what a pass, a process
and the tail cost beyond their nodes; and each of them, predicted without itself, says how far off predictions are.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from chipwise.blocks.lowering import lower
from chipwise.core.errors import MeasurementError, Unsupported
from chipwise.cost.memory import memory_parts
from chipwise.cost.pricing import STREAMS, combine, total_price
from chipwise.cost.terms import terms
from chipwise.deploy.onnx import export, random_weights
from chipwise.hardware.detect import detect
from chipwise.hardware.device import CheckError, Curve, MachineProfile, MemoryCost, PassCost, Tail
from chipwise.ops import Phase, Workload
from chipwise.profile import load
from chipwise.profile.fit import fit_relative, rising
from chipwise.profile.harness import measure
from chipwise.profile.measurement import Measurement
from chipwise.profile.microbench import Case, cases, request_data
from chipwise.profile.samples import WEIGHTS, random_designs
from chipwise.spec import Design

Progress = Callable[[str, float], None]
KNOTS_BYTES = (2.5e5, 1e6, 2e6, 4e6, 8e6, 1.6e7, 2.3e7, 3.2e7, 6.4e7)
WORKLOAD = Workload(prompt_tokens=64, new_tokens=64)
ROUNDS = 2  # of all small graphs, in different orders: a slow moment of the machine must hit a case twice to count
CASE_S = 0.015
MODEL_S = 1.35  # starting, warming up and timing one whole model
CASES_S = 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """One random model as measured, with its operators' prices."""

    design: Design
    measured: Measurement

    def seconds(self, phase: Phase, share: float) -> float:
        """The measured percentile of a pass; of its processor time where the machine was not quiet."""
        quantity: Literal["ttft", "tpot"] = "ttft" if phase is Phase.PREFILL else "tpot"
        processor = self.measured.environment.get(f"{quantity}_cpu_p{share * 100:.0f}")
        if self.measured.clean or processor is None:
            return self.measured.percentile(quantity, share)
        return float(processor)


def calibrate(
    *,
    runtime: str = "onnxruntime",
    threads: int = 1,
    seconds: float = 45.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> MachineProfile:
    """Measures this machine and returns its profile; ``progress`` hears a phase's name and the share done.

    ``seconds`` is what is aimed at on an idle machine: it sets how many whole models are measured.

    Raises:
        MeasurementError: A measuring process failed.
        Unsupported: This runtime cannot be calibrated.
    """
    if runtime != "onnxruntime":
        raise Unsupported(f"calibration knows the nodes of onnxruntime, not of {runtime}")
    tell = progress or (lambda phase, share: None)
    timed = time_cases(cases(), threads=threads, tell=tell)
    fitted, curves = fit_terms(timed)
    count = min(24, max(12, round((seconds - CASES_S) / MODEL_S)))
    wholes = list(_measure_wholes(random_designs(count, seed=seed), threads=threads, tell=tell))
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
        tails={phase.value: fit_tail(wholes, phase) for phase in Phase},
        checks={},
        roofs=_roofs(curves),
        peaks={weights: 2 / fitted[f"matmul.{weights}.matrix"]["products"] for weights in WEIGHTS},
        clean=not busy,
        notes=(f"{busy} of {count} models were timed on a busy machine; calibrate again when idle",) if busy else (),
    )
    checks = cross_check(profile, wholes)
    return replace(profile, passes=fit_passes(profile, wholes), checks=checks)


def time_cases(chosen: Sequence[Case], *, threads: int, tell: Progress) -> list[tuple[Case, float]]:
    """Seconds of one run of each case: the lesser of the rounds' medians."""
    best = [math.inf] * len(chosen)
    for turn in range(ROUNDS):
        order = list(range(len(chosen)))
        random.Random(turn).shuffle(order)
        cpus = load.idlest_cpus(threads)
        with _bench([chosen[i] for i in order], cpus=cpus, threads=threads) as lines:
            for done, (i, line) in enumerate(zip(order, lines, strict=True)):
                best[i] = min(best[i], float(json.loads(line)))
                tell("nodes", (turn * len(chosen) + done + 1) / (ROUNDS * len(chosen)))
    return list(zip(chosen, best, strict=True))


@contextmanager
def _bench(chosen: list[Case], *, cpus: tuple[int, ...], threads: int) -> Iterator[Iterator[str]]:
    """The lines that a fresh microbench process writes; the process is gone when the block ends."""
    with tempfile.TemporaryFile("w+") as request, tempfile.TemporaryFile("w+") as complaint:
        request.write(request_data(chosen, cpus=cpus, threads=threads, seconds=CASE_S))
        request.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-m", "chipwise.profile.microbench"],
            stdin=request,
            stdout=subprocess.PIPE,
            stderr=complaint,
            start_new_session=True,
            text=True,
        )
        assert child.stdout is not None
        try:
            yield iter(child.stdout)
        except ValueError:  # fewer lines than cases
            child.wait(timeout=10)
            complaint.seek(0)
            tail = " | ".join(complaint.read().strip().splitlines()[-3:])
            raise MeasurementError(
                f"calibration's measuring process ended early (code {child.returncode}). {tail}"
            ) from None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            child.stdout.close()


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


def _measure_wholes(designs: Sequence[Design], *, threads: int, tell: Progress) -> Iterator[Whole]:
    with tempfile.TemporaryDirectory(prefix="chipwise-") as folder:
        for i, design in enumerate(designs):
            path = export(design, random_weights(design.arch, seed=i), Path(folder) / "model.onnx")
            measured = measure(
                path, WORKLOAD, threads=threads, repeats=126, prefills=12, seconds=0.3, timeout_s=60, attempts=1
            )
            yield Whole(design=design, measured=measured)
            tell("models", (i + 1) / len(designs))


def fit_passes(profile: MachineProfile, wholes: Sequence[Whole]) -> dict[str, PassCost]:
    """What a pass costs beyond its nodes, by phase, from whole models. The profile's own passes must be neutral."""
    passes = {}
    for phase in Phase:
        nodes = [predict_seconds(profile, whole.design, phase, WORKLOAD, logits=0) for whole in wholes]
        features = [[1.0, whole.design.arch.vocab_size, s] for whole, s in zip(wholes, nodes, strict=True)]
        call, logit, scale = fit_relative(features, [whole.seconds(phase, 0.5) for whole in wholes])
        passes[phase.value] = PassCost(call_s=float(call), per_logit_s=float(logit), scale=float(scale))
    return passes


def predict_seconds(
    profile: MachineProfile, design: Design, phase: Phase, workload: Workload, *, logits: int | None = None
) -> float:
    """Predicted median of a pass. ``logits`` is batch times vocabulary unless given."""
    price = total_price((placed.op for placed in lower(design, workload, phase)), profile)
    count = workload.batch * design.arch.vocab_size if logits is None else logits
    return float(combine(price, profile, phase, logits=count))


def fit_tail(wholes: Sequence[Whole], phase: Phase) -> Tail:
    """The 99th percentile over the median, from whole models."""
    features = [[whole.seconds(phase, 0.5), 1.0] for whole in wholes]
    ratio, extra = fit_relative(features, [whole.seconds(phase, 0.99) for whole in wholes])
    return Tail(ratio=float(ratio), extra_s=float(extra))


def fit_memory(wholes: Sequence[Whole]) -> MemoryCost:
    """What a serving process takes, from whole models; the cache and activations count as they are."""
    features, resident = [], []
    for whole in wholes:
        parts = memory_parts(whole.design, WORKLOAD)
        peak = whole.measured.metric("peak_memory")
        matrix = [parts.matrix_bytes if whole.design.weights == weights else 0 for weights in WEIGHTS]
        features.append([1.0, parts.table_bytes, *matrix])
        resident.append(peak - parts.kv_bytes - parts.activation_bytes)
    base, table, *matrices = fit_relative(features, resident)
    return MemoryCost(
        base_bytes=float(base),
        per_table_byte=float(table),
        per_matrix_byte={weights: float(rate) for weights, rate in zip(WEIGHTS, matrices, strict=True)},
    )


def cross_check(profile: MachineProfile, wholes: Sequence[Whole], *, folds: int = 4) -> dict[str, CheckError]:
    """Prediction against measurement, each model predicted by fits that never saw it: medians, tails and memory."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    for fold in range(folds):
        seen = [whole for i, whole in enumerate(wholes) if i % folds != fold]
        fitted = replace(
            profile,
            passes=fit_passes(profile, seen),
            memory=fit_memory(seen),
            tails={phase.value: fit_tail(seen, phase) for phase in Phase},
        )
        for whole in wholes[fold::folds]:
            for phase in Phase:
                median, tail = predict_seconds(fitted, whole.design, phase, WORKLOAD), fitted.tails[phase.value]
                pairs.setdefault(phase.value, []).append((median, whole.seconds(phase, 0.5)))
                high = tail.ratio * median + tail.extra_s
                pairs.setdefault(f"{phase.value}_p99", []).append((high, whole.seconds(phase, 0.99)))
            peak = memory_parts(whole.design, WORKLOAD).peak_bytes(fitted.memory, whole.design.weights)
            pairs.setdefault("memory", []).append((peak, whole.measured.metric("peak_memory")))
    return {name: compare([p for p, _ in found], [m for _, m in found]) for name, found in pairs.items()}


def compare(predicted: Sequence[float], measured: Sequence[float]) -> CheckError:
    """Mean absolute share of error, spread of ln(measured / predicted) about zero, and Kendall's tau."""
    p, m = np.asarray(predicted, np.float64), np.asarray(measured, np.float64)
    return CheckError(
        models=len(p),
        mape=float(np.mean(np.abs(p / m - 1))),
        spread=max(0.01, float(np.sqrt(np.mean(np.log(m / p) ** 2)))),
        kendall_tau=kendall_tau(p, m),
    )


def kendall_tau(first: Any, second: Any) -> float:
    """Pairs ordered alike less pairs ordered otherwise, over all pairs; a tie counts for neither."""
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    upper = np.triu_indices(len(a), 1)
    agreement = np.sign(a[:, None] - a[None])[upper] * np.sign(b[:, None] - b[None])[upper]
    return float(agreement.mean()) if len(agreement) else 1.0


def _roofs(curves: Mapping[str, Curve]) -> dict[str, float]:
    """Bandwidth of the caches and of memory, as FP32 weights stream through them."""
    curve = curves["matmul.fp32.vector"]
    by_knot = dict(zip(curve.working_set_bytes, curve.s_per_byte, strict=True))
    return {
        "private caches": 1 / by_knot[KNOTS_BYTES[0]],
        "shared cache": 1 / by_knot[KNOTS_BYTES[4]],
        "DRAM": 1 / by_knot[KNOTS_BYTES[-1]],
    }
