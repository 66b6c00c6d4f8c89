"""Predicts a design's cost from its operators and the profile of a calibrated machine."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.statistics import Z90
from chipwise.hardware.device import CheckError, MachineProfile
from chipwise.model.arch.design import Design
from chipwise.model.ops.graph import OpGraph
from chipwise.model.ops.op import Op
from chipwise.model.ops.workload import Phase, Workload
from chipwise.predict.cost.memory import memory_parts
from chipwise.predict.cost.model import Bound, CostEstimate, OpCost, Predicted, per_second
from chipwise.predict.cost.pricing import combine, op_price, s_per_byte, total_price, working_set_bytes
from chipwise.predict.cost.request import throughput
from chipwise.predict.cost.terms import terms

MODEL = "calibrated@1"


def estimate(
    design: Design, prefill_graph: OpGraph, decode_graph: OpGraph, workload: Workload, profile: MachineProfile
) -> CostEstimate:
    """Predicts median and P99 times, memory, and the time of each operator.

    The intervals come from errors that the calibration measured on models of a similar size.

    Raises:
        Unsupported: The profile lacks rates for an operator.
    """
    logits = workload.batch * design.arch.outputs
    parts = memory_parts(design, workload, runtime=profile.runtime)
    stored = float(parts.table_bytes + parts.matrix_bytes)
    metrics: dict[str, Predicted] = {}
    images = not design.arch.reads_tokens  # a request is one pass without decoding
    graphs = (("ttft", prefill_graph),) if images else (("ttft", prefill_graph), ("tpot", decode_graph))
    for name, graph in graphs:
        price = total_price((placed.op for placed in graph), profile)
        median = design.arch.passes * float(combine(price, profile, graph.phase, logits=logits))
        tail = profile.tails[graph.phase.value]
        metrics[f"{name}_p50"] = interval(median, profile.check(graph.phase.value, stored))
        metrics[f"{name}_p99"] = interval(
            float(tail.p99_s(median, passes=design.arch.passes)), profile.check(f"{graph.phase.value}_p99", stored)
        )
    first, step = metrics["ttft_p50"], metrics.get("tpot_p50", Predicted.around(0.0, 0.0))
    ttft_s, tpot_s = (np.array([each.value, each.high, each.low], np.float64) for each in (first, step))
    rates = throughput(ttft_s, tpot_s, 1 if images else workload.new_tokens, workload.batch).tolist()
    if not images:
        metrics["decode_tokens_per_s"] = per_second(step)
        metrics |= {"itl_p50": step, "itl_p99": metrics["tpot_p99"]}  # one request: a gap is a step
    metrics["throughput"] = Predicted(value=rates[0], low=rates[1], high=rates[2])
    if images:
        metrics[f"{design.arch.reads}_s"] = Predicted(value=1 / rates[0], low=1 / rates[2], high=1 / rates[1])
    metrics["peak_memory"] = interval(parts.peak_bytes(profile.memory), profile.check("memory", stored))
    return CostEstimate(
        ttft_s=metrics["ttft_p50"].value,
        tpot_s=step.value,
        peak_memory_bytes=metrics["peak_memory"].value,
        metrics=metrics,
        memory_bytes=parts.held_bytes(profile.memory),
        prefill=operator_costs(prefill_graph, profile, logits=logits, passes=design.arch.passes),
        decode=() if images else operator_costs(decode_graph, profile, logits=logits),
        model=MODEL,
        profile=profile.digest,
        device=profile.machine.name,
        runtime=f"{profile.runtime} {profile.runtime_version}",
    )


def interval(value: float, check: CheckError) -> Predicted:
    """Returns ``value`` with its 90 % interval, assuming log-normal errors with the spread that ``check`` measured."""
    factor = math.exp(Z90 * check.spread)
    return Predicted(value=value, low=value / factor, high=value * factor)


def operator_costs(graph: OpGraph, profile: MachineProfile, *, logits: int, passes: int = 1) -> tuple[OpCost, ...]:
    """Total time of each operator in ``passes`` passes.

    Time that belongs to no operator is left out: the overhead of calling the runtime, and choosing tokens from the
    logits.
    """
    prices = np.array([op_price(placed.op, profile) for placed in graph])
    working_set = float(working_set_bytes(prices.sum(axis=0)))
    scale = (
        passes * profile.passes[graph.phase.value].scale * _correction(prices.sum(axis=0), profile, graph.phase, logits)
    )
    costs = []
    for placed in graph:
        launch, compute, memory = _split(placed.op, profile, working_set)
        bounds = {Bound.LAUNCH: launch, Bound.COMPUTE: compute, Bound.MEMORY: memory}
        costs.append(
            OpCost(
                place=placed.place,
                kind=placed.op.kind,
                latency_s=scale * (launch + compute + memory),
                bound=max(bounds, key=lambda bound: bounds[bound]),
                work=placed.op.work(),
                compute_s=scale * compute,
                memory_s=scale * memory,
                launch_s=scale * launch,
            )
        )
    return tuple(costs)


def _correction(price: Float64Array, profile: MachineProfile, phase: Phase, logits: int) -> float:
    """The factor of the residual correction. It applies to the whole pass and thus to each operator's time."""
    known = float(combine(price, profile, phase, logits=logits))
    return known / float(combine(price, replace(profile, residuals={}), phase, logits=logits))


def _split(op: Op, profile: MachineProfile, working_set: float) -> tuple[float, float, float]:
    """Seconds that an operator spends on launching, computing and streaming weights.

    For matrix-matrix products, the time to stream the weights from the fastest cache counts as computing. Only the
    additional time to stream them from slower levels counts as streaming.
    """
    launch = compute = memory = 0.0
    for term in terms(op):
        rates = profile.rates(term.model)
        for name, amount in term.amounts.items():
            if name == "node":
                launch += rates[name] * amount
            else:
                compute += rates.get(name, 0.0) * amount
        if term.streamed_bytes and term.model in profile.curves:
            curve = profile.curves[term.model]
            streamed = term.streamed_bytes * float(s_per_byte(curve, working_set))
            fastest = term.streamed_bytes * min(curve.s_per_byte)
            shape_is_vector = op.work().intensity < 4
            memory += streamed if shape_is_vector else streamed - fastest
            compute += 0.0 if shape_is_vector else fastest
    return launch, compute, memory
