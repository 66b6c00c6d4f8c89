"""Fits rates of nodes to whole models, for runtimes whose nodes cannot be timed one by one.

The cost model's rates (``predict/cost/terms.py``) are fitted to both phases of all measured models at once. Rates that
whole models cannot separate are tied and fitted as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from chipwise.deploy.calibrate.learning import Observed, fit_relative, rising
from chipwise.hardware.detect import Machine
from chipwise.hardware.device import Curve, PassCost
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower
from chipwise.predict.cost.terms import terms

KNOTS_BYTES = (1e6, 4e6, 1.6e7, 4.8e7, 1.28e8, 3.2e8)  # working sets between which the cost per byte rises
TIED = (
    ("matmul.*", "node"),
    ("attention.*", "node"),
    ("norm.*", "node"),
    ("elementwise.*", "node"),
    ("gather", "node"),
    ("conv*", "node"),
    ("attention.step", "head"),
    ("attention.step", "product"),
    ("attention.step", "rest"),
    ("attention.prompt", "query"),
    ("attention.prompt", "score"),
    ("attention.prompt", "product"),
    ("attention.prompt", "rest"),
    *(("attention.[fb]*", feature) for feature in ("query", "head", "score", "product", "rest")),  # full and biased
    ("attention.*", "value"),
    ("norm.*", "row"),
    ("norm.*", "value"),
    ("elementwise.*", "value"),
    ("gather", "value"),
    ("conv", "value"),
    ("conv.image", "products"),
    ("pool", "value"),
    ("matmul.fp32.vector", "out"),
    ("matmul.fp32.vector", "rest"),
    ("matmul.fp32.matrix", "out"),
    ("matmul.fp32.matrix", "products"),
    ("matmul.int8.vector", "in"),
    ("matmul.int8.vector", "out"),
    ("matmul.int8.matrix", "in"),
    ("matmul.int8.matrix", "out"),
    ("matmul.int8.matrix", "products"),
    ("matmul.int4.vector", "in"),
    ("matmul.int4.vector", "out"),
    ("matmul.int4.matrix", "in"),
    ("matmul.int4.matrix", "out"),
    ("matmul.int4.matrix", "products"),
)
"""Pairs of a pattern of node kinds and a feature; everything that matches a pair gets one rate. Features without a
match have rate 0, such as ``in`` (the cost of quantising activations) in FP32 products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Fitted rates, as a machine profile stores them."""

    terms: dict[str, dict[str, float]]
    curves: dict[str, Curve]
    passes: dict[str, PassCost]


def best_rates(observed: Sequence[Observed], machine: Machine) -> tuple[dict[str, float], dict[str, float]]:
    """The best rates of any model: FLOP/s in prefill by weight format, bytes/s in decode by memory level.

    A step's level is the smallest one that holds the weights and cache it reads; levels without a model are left out.
    Small models are dominated by kernel launches, so a faster level gets at least the rate of the next slower one.
    """
    peaks: dict[str, float] = {}
    roofs: dict[str, float] = {}
    for item in observed:
        prompt, step = (
            [placed.op for placed in lower(item.design, item.workload, phase)]
            for phase in (Phase.PREFILL, Phase.DECODE)
        )
        flops = float(sum(op.work().flops for op in prompt))
        weights, rate = item.design.weights, flops / item.seconds(Phase.PREFILL, 0.5)
        peaks[weights] = max(rate, peaks.get(weights, 0.0))
        touched = sum(term.streamed_bytes + term.resident_bytes for op in step for term in terms(op))
        caches = (("private caches", machine.l2_bytes), ("shared cache", machine.l3_bytes))
        level = next((name for name, size in caches if size is not None and touched <= size), "DRAM")
        roofs[level] = max(touched / item.seconds(Phase.DECODE, 0.5), roofs.get(level, 0.0))
    fastest = 0.0
    for level in ("DRAM", "shared cache", "private caches"):
        if level in roofs:
            roofs[level] = fastest = max(fastest, roofs[level])
    return peaks, roofs


def fit_model_rates(observed: Sequence[Observed]) -> Rates:
    """Non-negative rates that fit the medians of both phases of all models, in relative error."""
    rows = [amounts(item.design, item.workload, phase) for item in observed for phase in Phase]
    seconds = [item.seconds(phase, 0.5) for item in observed for phase in Phase]
    names = sorted({name for row in rows for name in row})
    solved = fit_relative([[row.get(name, 0.0) for name in names] for row in rows], seconds)
    rate = {name: float(value) for name, value in zip(names, solved, strict=True)}
    kinds: dict[str, set[str]] = {}
    for item in observed:
        for phase in Phase:
            for placed in lower(item.design, item.workload, phase):
                for term in terms(placed.op):
                    kinds.setdefault(term.model, set()).update(term.amounts)
    return Rates(
        terms={
            kind: {feature: rate.get(_tie(kind, feature), 0.0) for feature in sorted(features)}
            for kind, features in kinds.items()
        },
        curves={kind: _curve(kind, rate) for kind in kinds if kind.startswith("matmul.")},
        passes={
            phase.value: PassCost(call_s=rate[f"call {phase.value}"], per_logit_s=rate["logits"], scale=1.0)
            for phase in Phase
        },
    )


def amounts(design: Design, workload: Workload, phase: Phase) -> dict[str, float]:
    """Amount of each tied feature, of streamed bytes, calls and logits in one pass."""
    found: dict[str, float] = {f"call {phase.value}": 1.0, "logits": workload.batch * design.arch.outputs}
    streamed: dict[str, float] = {}
    working_set = 0.0
    for placed in lower(design, workload, phase):
        for term in terms(placed.op):
            working_set += term.streamed_bytes + term.resident_bytes
            streamed[term.model] = streamed.get(term.model, 0.0) + term.streamed_bytes
            for feature, amount in term.amounts.items():
                name = _tie(term.model, feature)
                found[name] = found.get(name, 0.0) + amount
    found.pop("", None)
    ramps = rising(KNOTS_BYTES, working_set)
    for kind, size in streamed.items():
        if size:
            found |= {name: size * share for name, share in zip(_streams(kind), ramps, strict=False)}
    return found


def _tie(kind: str, feature: str) -> str:
    """Name under which a feature of a node kind is fitted; empty if it is left out."""
    return next((f"{k} {f}" for k, f in TIED if f == feature and fnmatchcase(kind, k)), "")


def _streams(kind: str) -> list[str]:
    """Names of the rates per streamed byte: by working set in decode; a single one in prefill, which reuses weights."""
    return [f"{kind} byte {i}" for i in range(len(KNOTS_BYTES) if kind.endswith("vector") else 1)]


def _curve(kind: str, rate: dict[str, float]) -> Curve:
    rises = [rate.get(name, 0.0) for name in _streams(kind)]
    return Curve(working_set_bytes=KNOTS_BYTES[: len(rises)], s_per_byte=tuple(map(float, np.cumsum(rises))))
