"""Fits rates of single nodes to small graphs of one node kind each, timed in ONNX Runtime (``microbench.py``)."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import numpy as np

from chipwise.core.digest import digest
from chipwise.core.workers import WorkerPool
from chipwise.deploy.calibrate.learning import fit_relative, rising
from chipwise.deploy.calibrate.microbench import LOADED, Case
from chipwise.deploy.calibrate.partial import Partial
from chipwise.deploy.measure import sensors
from chipwise.errors import MeasurementError
from chipwise.hardware.device import Curve
from chipwise.predict.cost.pricing import STREAMS, s_per_byte
from chipwise.predict.cost.terms import terms

Progress = Callable[[str, float], None]
KNOTS_BYTES = (2.5e5, 1e6, 2e6, 4e6, 8e6, 1.6e7, 2.3e7, 3.2e7, 6.4e7, 1.28e8, 2.56e8, 5.12e8)
ROUNDS = 3  # over the small graphs, each in a different order, so that a slow moment does not hit the same graphs
FAR_VALUES = 2e6  # exceed a core's caches; kinds without a case of this size get no rate for so many values
CASE_S = 0.01
CASE_SILENCE_S = 120.0  # a case that takes longer counts as hung


def time_cases(
    chosen: Sequence[Case],
    *,
    threads: int,
    on_progress: Progress,
    partial: Partial | None = None,
    rounds: int = ROUNDS,
) -> list[tuple[Case, float]]:
    """Seconds of one run of each case, the minimum over all rounds. Large cases are timed in one round only.

    Results in ``partial`` are reused, and new ones are stored there.
    """
    kept = partial or Partial(None, runtime="", threads=threads)
    best = [math.inf] * len(chosen)
    turns = _turns(chosen, rounds)
    names = [f"node {turn} {digest(asdict(chosen[i]))}" for turn, i in turns]
    found = [kept.get(name) for name in names]
    for (_, i), seconds in zip(turns, found, strict=True):
        if isinstance(seconds, float):
            best[i] = min(best[i], seconds)
    todo = [number for number, seconds in enumerate(found) if not isinstance(seconds, float)]
    if not todo:
        return list(zip(chosen, best, strict=True))
    setup = {"cpus": list(sensors.idlest_cpus(threads)), "threads": threads, "seconds": CASE_S}
    with WorkerPool(
        [sys.executable, "-m", "chipwise.deploy.calibrate.microbench"],
        1,
        name="measuring process",
        silence_s=CASE_SILENCE_S,
        setup=setup,
        environment={},
    ) as pool:
        jobs = {pool.submit(asdict(chosen[turns[number][1]])): number for number in todo}
        for done, event in enumerate(pool.events(), start=len(turns) - len(todo) + 1):
            if event.kind == "failed":
                raise MeasurementError(f"calibration: {event.data['message']}")
            place, seconds = turns[jobs[event.job]][1], float(event.data)
            best[place] = min(best[place], seconds)
            kept.put(names[jobs[event.job]], seconds)
            on_progress("nodes", done / len(turns))
    return list(zip(chosen, best, strict=True))


def _turns(chosen: Sequence[Case], rounds: int) -> list[tuple[int, int]]:
    """Lists (round, index of a case) in the order of timing.

    ``LOADED`` cases are timed in all rounds, then the next ``LOADED`` cases. Meanwhile their graphs stay loaded in the
    measuring process, because loading a graph takes longer than timing it.
    Large cases are timed in the first round only.
    """
    shuffled, found = list(range(len(chosen))), list[tuple[int, int]]()
    random.Random(0).shuffle(shuffled)
    for begin in range(0, len(shuffled), LOADED):
        for turn in range(rounds):
            order = [i for i in shuffled[begin : begin + LOADED] if turn == 0 or not chosen[i].large]
            random.Random(turn).shuffle(order)
            found += [(turn, i) for i in order]
    return found


def fit_terms(
    timed: Sequence[tuple[Case, float]],
) -> tuple[dict[str, dict[str, float]], dict[str, Curve]]:
    """Fits rates of every node kind, and curves of the cost per streamed byte, to timed cases."""
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
        names = sorted({name for amounts, _, _ in rows for name in amounts})
        if all(amounts.get("far", 0.0) < FAR_VALUES for amounts, _, _ in rows):  # no case shows the cost
            names = [name for name in names if name != "far"]
        features = np.array([[amounts.get(name, 0.0) for name in names] for amounts, _, _ in rows])
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
    """Cost of a call to the runtime, extrapolated from two lengths of the same chain of tiny nodes."""
    chains = {case.count: seconds for case, seconds in timed if case.kind == "relu" and case.k == 16}
    (short, short_s), (long, long_s) = sorted(chains.items())
    node_s = max(0.0, (long_s - short_s) / (long - short))
    return max(0.0, short_s - short * node_s)


def bandwidths(curves: Mapping[str, Curve]) -> dict[str, float]:
    """Maps each cache or memory level whose fitted cost is above 0 to its bytes/s for streamed FP32 weights."""
    curve = curves["matmul.fp32.vector"]
    places = {"private caches": KNOTS_BYTES[0], "shared cache": KNOTS_BYTES[4], "DRAM": KNOTS_BYTES[-1]}
    costs = {name: float(s_per_byte(curve, working_set)) for name, working_set in places.items()}
    return {name: 1 / cost for name, cost in costs.items() if cost > 0}
