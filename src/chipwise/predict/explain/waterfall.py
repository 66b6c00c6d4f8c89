"""Splits the predicted time of a pass into an ideal time and losses.

The ideal is the time that the pass would take if every kernel reached the chip's published rates, and if every chain of
kernels that any runtime fuses were fused. The remaining time is split by cause. Removing a cause could save at most the
time of this cause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from chipwise.core import units
from chipwise.errors import ChipwiseError
from chipwise.hardware.runtime import EVERY
from chipwise.predict.cost.model import Bound, CostEstimate, OpCost
from chipwise.predict.explain.question import Case, PhaseName
from chipwise.predict.served import stack_law
from chipwise.predict.served.batching import constants
from chipwise.predict.served.steps import class_of

Scales = Mapping[str, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePart:
    """Seconds of a pass that have one cause. If ``ideal``, the cause is a limit of the chip; otherwise it is a loss."""

    name: str
    seconds: float
    ideal: bool = False
    why: str = ""


WAITING = "waiting for other requests' prompts"
SHORT = "short kernels"
AS_RUN = "engine as it ran"
_WASTE = {
    "compute": ("tiles, waves and clocks", "compute-bound kernels below the peak rate"),
    "memory": ("bandwidth not reached", "memory-bound kernels below the peak bandwidth"),
    "launch": (SHORT, "kernels too small to reach either limit: their fixed time"),
}
AGAIN = "again."  # prefix of the places of kernels that checkpointing runs again


def waterfall(case: Case, phase: PhaseName) -> tuple[TimePart, ...]:
    """The parts of a phase's predicted time, in order; they add up to TTFT (prefill) or TPOT (decode)."""
    total_s = case.estimate.ttft_s if phase == "prefill" else case.estimate.tpot_s
    if case.training:
        parts = _training(case, total_s)
    else:
        parts = _calibrated(case, phase, total_s) if case.sheet is None else _data_sheet(case, phase, total_s)
    return tuple(part for part in parts if abs(part.seconds) > 1e-9 * total_s)


def step_s(parts: Sequence[TimePart]) -> float:
    """Seconds of the pass itself, without waiting for other requests."""
    return sum(part.seconds for part in parts if part.name != WAITING)


def decode_step_s(case: Case) -> float:
    """Seconds of one decode step: the predicted time per token without the wait for other requests' prompts."""
    if case.sheet is None:
        return case.estimate.tpot_s
    scales, beside_s = _scales(case), sum(part.seconds for part in _beside(case, "decode"))
    return beside_s + sum(_busy_s(cost, scales) for cost in _kernels(case, "decode"))


def reached(parts: Sequence[TimePart]) -> float:
    """The ideal time as a share of the pass's time."""
    return sum(part.seconds for part in parts if part.ideal) / step_s(parts)


def _calibrated(case: Case, phase: PhaseName, total_s: float) -> list[TimePart]:
    costs = case.operators(phase)
    sums = {name: sum(getattr(cost, name) or 0.0 for cost in costs) for name in ("compute_s", "memory_s", "launch_s")}
    rest_s = total_s - sum(sums.values())
    return [
        TimePart(name="computing", seconds=sums["compute_s"], ideal=True, why="at the rates that calibration measured"),
        TimePart(name="streaming weights", seconds=sums["memory_s"], ideal=True, why="at the working set's bandwidth"),
        TimePart(name="launching nodes", seconds=sums["launch_s"], why=f"{len(costs)} nodes of the graph"),
        TimePart(name="the pass itself", seconds=rest_s, why="calling the runtime, choosing a token"),
    ]


def _data_sheet(case: Case, phase: PhaseName, total_s: float) -> list[TimePart]:
    """The parts for a chip with a data sheet. Each kernel's time is split into the chip's limit and a loss.

    Kernel times are those of :meth:`chipwise.predict.served.batching.Constants.step_s`.
    """
    scales, kernels = _scales(case), _kernels(case, phase)
    ideal = [sum(each) for each in zip(*(_ideals(cost, scales) for cost in kernels), strict=True)]
    fused = [sum(each) for each in zip(*(_ideals(cost, scales) for cost in _fused(case, phase)), strict=True)]
    compute_s, memory_s = fused if sum(fused) <= sum(ideal) else ideal
    waste = dict.fromkeys(_WASTE, 0.0)
    for cost in kernels:
        waste[_limiting(cost)] += _busy_s(cost, scales) - _limit_s(cost, scales)
    parts = [
        TimePart(name="compute limit", seconds=compute_s, ideal=True, why="FLOPs at the dense peak"),
        TimePart(name="bandwidth limit", seconds=memory_s, ideal=True, why="bytes at the memory bandwidth"),
        TimePart(
            name="unfused traffic", seconds=sum(ideal) - compute_s - memory_s, why="chains that runtimes can fuse"
        ),
        *(TimePart(name=name, seconds=waste[kind], why=why) for kind, (name, why) in _WASTE.items()),
        *_beside(case, phase),
    ]
    if case.sheet is not None and stack_law.prices(case.question.served_by, case.arch, case.sheet):
        return _as_engines_ran(parts, total_s)
    if phase == "decode" and case.question.batch > 1:
        rest_s = total_s - sum(part.seconds for part in parts)
        parts.append(TimePart(name=WAITING, seconds=rest_s, why="their prefills delay this request's steps"))
    return parts


def _as_engines_ran(parts: list[TimePart], total_s: float) -> list[TimePart]:
    """The parts of a pass whose total time comes from a law fitted to whole runs, not from its kernels.

    If the parts sum to less than the total, another part is added for the difference. If they sum to more, all parts
    are scaled down.
    """
    kernels_s = sum(part.seconds for part in parts)
    if kernels_s > total_s:
        return [replace(part, seconds=part.seconds * total_s / kernels_s) for part in parts]
    rest_s = total_s - kernels_s
    return [*parts, TimePart(name=AS_RUN, seconds=rest_s, why="measured runs took longer than the kernels")]


def _training(case: Case, total_s: float) -> list[TimePart]:
    """The parts of a training step. Each kernel's time is split into the chip's limit and a loss.

    Recomputed kernels are a separate part, and so is communication.
    """
    kernels = _kernels(case, "prefill")
    again_s = sum(cost.latency_s for cost in kernels if cost.place.startswith(AGAIN))
    once = [cost for cost in kernels if not cost.place.startswith(AGAIN)]
    limits = {"compute": 0.0, "memory": 0.0}
    waste = dict.fromkeys(_WASTE, 0.0)
    for cost in once:
        kind = "compute" if (cost.compute_s or 0.0) >= (cost.memory_s or 0.0) else "memory"
        limit_s = min(cost.latency_s, max(cost.compute_s or 0.0, cost.memory_s or 0.0))
        limits[kind] += limit_s
        waste[_limiting(cost)] += cost.latency_s - limit_s
    rest_s = total_s - again_s - sum(limits.values()) - sum(waste.values())
    return [
        TimePart(name="compute limit", seconds=limits["compute"], ideal=True, why="FLOPs at the dense peak"),
        TimePart(name="bandwidth limit", seconds=limits["memory"], ideal=True, why="bytes at the memory's bandwidth"),
        *(TimePart(name=name, seconds=waste[kind], why=why) for kind, (name, why) in _WASTE.items()),
        TimePart(name="computed again", seconds=again_s, why="activations that were not kept"),
        TimePart(name="communication", seconds=rest_s, why="between devices, and stages that wait"),
    ]


def _limiting(cost: OpCost) -> str:
    """What limits a kernel: its FLOPs, its bytes, or its fixed time."""
    if cost.bound is Bound.LAUNCH:
        return "launch"
    return "compute" if (cost.compute_s or 0.0) >= (cost.memory_s or 0.0) else "memory"


def _kernels(case: Case, phase: PhaseName) -> list[OpCost]:
    """All kernels except communication."""
    return [cost for cost in case.operators(phase) if class_of(cost.kind) != "collective"]


def _beside(case: Case, phase: PhaseName) -> list[TimePart]:
    """The parts of a pass outside its kernels: launches and gaps, communication, and the host."""
    known, runtime, question = constants(), case.question.served_by, case.question
    costs = case.operators(phase)
    count = sum(cost.count for cost in costs)
    link_s = sum(cost.latency_s for cost in costs if class_of(cost.kind) == "collective")
    if runtime.graphs:
        launch_s, stall_s = known.gap_s * count, 0.0
        why = f"between {units.number(count)} kernels of {runtime.replayed_as}"
    else:
        launch_s = sum(cost.launch_s or 0.0 for cost in _kernels(case, phase))
        why = f"of {units.number(count)} kernels, one by one"
        stall_s = max(0.0, runtime.dispatch_s * count - sum(cost.latency_s for cost in costs))
    sequences = -(-question.batch // (question.deployment.dp * question.deployment.pp)) if phase == "decode" else 0
    host_s = float(known.host_step_s(runtime, sequences=sequences, tp=question.deployment.tp))
    return [
        TimePart(name="launches and gaps", seconds=launch_s, why=why),
        TimePart(name="communication", seconds=link_s, why="between devices"),
        TimePart(name="host", seconds=host_s + stall_s, why="scheduling and dispatch that kernels do not hide"),
    ]


def _fused(case: Case, phase: PhaseName) -> Sequence[OpCost]:
    """The kernels that the pass would have if every chain that any runtime can fuse were fused.

    Communication is left out.
    """
    runtime = case.question.served_by
    whole: CostEstimate | ChipwiseError = case.estimate
    if runtime.fused != EVERY:
        whole = case.pricer.price([case.question.but(runtime=replace(runtime, fused=EVERY))])[0]
    if isinstance(whole, ChipwiseError):
        whole = case.estimate
    costs = whole.prefill if phase == "prefill" else whole.decode
    return [cost for cost in costs if class_of(cost.kind) != "collective"]


def _scales(case: Case) -> Scales:
    """Maps each class of kernels to its time in serving divided by its time when measured alone.

    None in runtimes that launch kernels from the host, without captured graphs.
    """
    runtime = case.question.served_by
    return constants().scales(runtime) if runtime.graphs else None


def _busy_s(cost: OpCost, scales: Scales) -> float:
    """Seconds of a kernel without its launch."""
    busy_s = cost.latency_s + cost.saved_s - (cost.launch_s or 0.0)
    if scales is not None:
        busy_s = max(scales.get(class_of(cost.kind), 1.0) * busy_s, cost.compute_s or 0.0, cost.memory_s or 0.0)
    return busy_s - cost.saved_s


def _limit_s(cost: OpCost, scales: Scales) -> float:
    """Seconds of a kernel at the chip's published rates.

    The result is at most the predicted time, because caches serve some kernels faster than memory could.
    """
    return min(max(cost.compute_s or 0.0, cost.memory_s or 0.0), _busy_s(cost, scales))


def _ideals(cost: OpCost, scales: Scales) -> tuple[float, float]:
    limit_s = _limit_s(cost, scales)
    return (limit_s, 0.0) if (cost.compute_s or 0.0) >= (cost.memory_s or 0.0) else (0.0, limit_s)


OVERHEADS = ("launches and gaps", SHORT, "communication", "host", AS_RUN, WAITING, "launching nodes", "the pass itself")
_BOUND = {Bound.COMPUTE: "compute-bound", Bound.MEMORY: "memory-bound", Bound.LINK: "bound by communication"}
_SPENT = {
    ("matmul", "memory"): "streaming weights",
    ("experts", "memory"): "streaming experts",
    ("attention", "memory"): "reading the cache",
    ("other", "memory"): "streaming activations and tables",
    ("matmul", "compute"): "multiplying matrices",
    ("experts", "compute"): "multiplying experts' matrices",
    ("attention", "compute"): "computing attention",
    ("other", "compute"): "elementwise operators",
}


def seconds_by_bound(costs: Sequence[OpCost]) -> dict[Bound, float]:
    """Total seconds of kernels, by the bound that limits them."""
    spent: dict[Bound, float] = {}
    for cost in costs:
        spent[cost.bound] = spent.get(cost.bound, 0.0) + cost.latency_s
    return spent


def bound_of(costs: Sequence[OpCost]) -> tuple[Bound, float]:
    """The bound that limits the largest share of a pass's kernel time, and this share."""
    spent = seconds_by_bound(costs)
    bound = max(spent, key=lambda name: spent[name])
    return bound, spent[bound] / sum(spent.values())


def verdict(case: Case, phase: PhaseName, parts: tuple[TimePart, ...]) -> str:
    """A sentence on what bounds a phase, on what takes most of its time, and on how close it is to the chip's limits.

    For example: ``decode is memory-bound: streaming weights takes 93 % of its kernels' time; it reaches 61 % of the
    data sheet's limits``. All shares except those of kernel time are computed from ``parts``, the parts of the
    waterfall.
    """
    costs = case.operators(phase)
    bound, share = bound_of(costs)
    name = phase if case.generates else "training" if case.training else "the pass"
    whole = sum(part.seconds for part in parts)
    limit = _reached_text(case, parts)
    largest = max((part for part in parts if part.name in OVERHEADS), key=lambda part: part.seconds, default=None)
    if largest is not None and (largest.seconds > 0.5 * whole or bound is Bound.LAUNCH):
        taken = units.show(largest.seconds / whole, "share", digits=2)
        return f"{name} is bound by {largest.name}: {taken} of its time, {largest.why}{limit}"
    if bound in (Bound.LINK, Bound.LAUNCH):
        what = {Bound.LINK: "communication", Bound.LAUNCH: "the fixed time of its kernels"}[bound]
        return f"{name} is bound by {what}: {units.show(share, 'share')} of its kernels' time{limit}"
    spent: dict[str, float] = {}
    for cost in costs:
        if cost.bound is bound:
            what = _SPENT.get((class_of(cost.kind), bound.value), "")
            spent[what] = spent.get(what, 0.0) + cost.latency_s
    what = max(spent, key=lambda key: spent[key])
    taken = units.show(spent[what] / sum(cost.latency_s for cost in costs), "share", digits=2)
    return f"{name} is {_BOUND[bound]}: {what} takes {taken} of its kernels' time{limit}"


def _reached_text(case: Case, parts: Sequence[TimePart]) -> str:
    """Text on the share of the data sheet's limits that a phase reaches; for this machine, a note on measured rates."""
    if case.sheet is None:
        return ", at the rates that calibration measured on this machine"
    return f"; it reaches {units.show(reached(parts), 'share', digits=2)} of the data sheet's limits"
