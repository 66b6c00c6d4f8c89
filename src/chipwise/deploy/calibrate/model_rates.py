"""Fits rates of nodes to whole models, for runtimes whose nodes cannot be timed one by one.

The cost model's rates (``predict/cost/terms.py``) are fitted to both phases of all measured models at once. Rates that
whole models cannot separate are tied and fitted as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from chipwise.deploy.calibrate.learning import Observed, fit_relative, rising
from chipwise.deploy.calibrate.random_models import WEIGHTS
from chipwise.hardware.detect import Machine
from chipwise.hardware.device import Curve, PassCost
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower
from chipwise.predict.cost.terms import terms

KNOTS_BYTES = (1e6, 4e6, 1.6e7, 4.8e7, 1.28e8, 3.2e8)  # working sets between which the cost per byte rises
VECTORS, MATRICES = ([f"matmul.{weights}.{shape}" for weights in WEIGHTS] for shape in ("vector", "matrix"))
BOTH = "attention.[fb]*"  # matches attention.full and attention.biased
TIED: Mapping[str, Sequence[str]] = {
    "node": ("matmul.*", "attention.*", "norm.*", "elementwise.*", "gather", "conv*"),
    "head": ("attention.step", BOTH),
    "query": ("attention.prompt", BOTH),
    "score": ("attention.prompt", BOTH),
    "product": ("attention.step", "attention.prompt", BOTH),
    "rest": ("attention.step", "attention.prompt", BOTH, "matmul.fp32.vector"),
    "value": ("attention.*", "norm.*", "elementwise.*", "gather", "conv", "pool"),
    "row": ("norm.*",),
    "in": (*VECTORS[1:], *MATRICES[1:]),
    "out": (*VECTORS, *MATRICES),
    "products": ("conv.image", *MATRICES),
}
"""Patterns of node kinds by feature. All kinds that match the same pattern get one common rate of the feature. A kind
that matches none has rate 0: ``in`` (the cost of quantising activations) is 0 for FP32 matrix products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Fitted rates, as a machine profile stores them."""

    terms: dict[str, dict[str, float]]
    curves: dict[str, Curve]
    passes: dict[str, PassCost]


def best_rates(observed: Sequence[Observed], machine: Machine) -> tuple[dict[str, float], dict[str, float]]:
    """The highest FLOP/s in prefill for each weight format, and the highest bytes/s in decode for each memory level.

    A decode step's memory level is the smallest one that holds the weights and the KV cache that the step reads. Levels
    without such a step are left out. Kernel launches dominate small models, so a level that is measured slower than a
    larger one gets the rate of the larger one.
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
    """Fits non-negative rates that minimise the relative errors of both phases' predicted medians, over all models."""
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
    """Maps the name of each rate to an amount. The cost of a pass is the sum of all rates times their amounts.

    The amounts are those of tied features, streamed bytes, calls and logits.
    """
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
    """Name under which a feature of a node kind is fitted; empty if the feature has no rate for this kind."""
    return next((f"{pattern} {feature}" for pattern in TIED.get(feature, ()) if fnmatchcase(kind, pattern)), "")


def _streams(kind: str) -> list[str]:
    """Names of a kind's rates per streamed byte: one per ``KNOTS_BYTES`` for matrix-vector products, else one."""
    return [f"{kind} byte {i}" for i in range(len(KNOTS_BYTES) if kind.endswith("vector") else 1)]


def _curve(kind: str, rate: dict[str, float]) -> Curve:
    rises = [rate.get(name, 0.0) for name in _streams(kind)]
    return Curve(working_set_bytes=KNOTS_BYTES[: len(rises)], s_per_byte=tuple(map(float, np.cumsum(rises))))
