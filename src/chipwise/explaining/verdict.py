"""The verdict: one sentence a phase on what bounds it, what that is spent on, and how far from the limit it is."""

from __future__ import annotations

from chipwise.cost.model import Bound, OpCost
from chipwise.explaining.question import Case, PhaseName
from chipwise.explaining.waterfall import WAITING, Part, reached
from chipwise.serve.steps import class_of

OVERHEADS = ("launches and gaps", "communication", "host", WAITING, "launching nodes", "the pass itself")
_WORDS = {Bound.COMPUTE: "compute-bound", Bound.MEMORY: "memory-bound", Bound.LINK: "bound by communication"}
_SPENT = {
    ("matmul", "memory"): "streams weights",
    ("experts", "memory"): "streams experts",
    ("attention", "memory"): "reads the cache",
    ("other", "memory"): "streams activations and tables",
    ("matmul", "compute"): "multiplies matrices",
    ("experts", "compute"): "multiplies experts' matrices",
    ("attention", "compute"): "computes attention",
    ("other", "compute"): "computes elementwise",
}


def bound_of(costs: tuple[OpCost, ...]) -> tuple[Bound, float]:
    """What bounds most of a pass's kernel time, and its share of that."""
    spent: dict[Bound, float] = {}
    for cost in costs:
        spent[cost.bound] = spent.get(cost.bound, 0.0) + cost.latency_s
    bound = max(spent, key=lambda name: spent[name])
    return bound, spent[bound] / sum(spent.values())


def verdict(case: Case, phase: PhaseName, parts: tuple[Part, ...]) -> str:
    """Such as ``decode is memory-bound: 93 % of its kernels' time streams weights; 61 % of the limit is reached``."""
    costs = case.operators(phase)
    bound, share = bound_of(costs)
    name = phase if case.generates else "training" if case.training else "the pass"
    whole = sum(part.seconds for part in parts)
    largest = max((part for part in parts if part.name in OVERHEADS), key=lambda part: part.seconds, default=None)
    limits = reached(parts)
    if largest is not None and largest.seconds > 0.5 * whole:
        return f"{name} is bound by {largest.name}: {_percent(largest.seconds / whole)} of its time, {largest.why}"
    if bound is Bound.LAUNCH:
        return f"{name} is bound by launching its kernels: {_percent(share)} of their time; {_percent(limits)} is work"
    if bound is Bound.LINK:
        return f"{name} is bound by communication: {_percent(share)} of its kernels' time"
    spent: dict[str, float] = {}
    for cost in costs:
        if cost.bound is bound:
            what = _SPENT.get((class_of(cost.kind), bound.value), "")
            spent[what] = spent.get(what, 0.0) + cost.latency_s
    what = max(spent, key=lambda key: spent[key])
    part = spent[what] / sum(cost.latency_s for cost in costs)
    against = "the data sheet's limits" if case.sheet is not None else "what this machine was measured to do"
    return (
        f"{name} is {_WORDS[bound]}: {_percent(part)} of its kernels' time {what}; {_percent(limits)} of {against} "
        "is reached"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
