"""Explains which operators, classes of operators and modules take a graph's time, and how much changes would gain."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from chipwise.core import units
from chipwise.core.results import Result, Row
from chipwise.errors import counted
from chipwise.model.graphs.graph import PRODUCTS, Graph
from chipwise.predict.cost.whole_run import RunEstimate
from chipwise.predict.graphs.law import law
from chipwise.predict.graphs.npus import Npu, NpuPrices
from chipwise.predict.graphs.pricing import Chip, OpTime, operators_on
from chipwise.predict.served.picture_changes import Change

LEAST = 1.02  # least speed-up worth showing
MOST_GAINS = 6
MOST_MODULES, DEEPEST = 12, 4
LAYOUT = "layout"  # class of copies between layouts, which the runtime adds


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GraphExplanation(Result):
    """The time of each operator, module and class of operators in a pass, and the changes with the largest gains."""

    estimate: RunEstimate
    measured: bool  # whether the operators' seconds were measured; else they come from the law
    operators: tuple[OpTime, ...]  # slowest first
    modules: dict[str, float]  # share of the time by module, largest first; empty if names do not show modules
    gains: tuple[Change, ...]
    flops: int
    weight_bytes: int
    uncounted: tuple[str, ...]  # operators that have no FLOPs and bytes

    def headline(self) -> str:
        """The estimate's headline, and the class of operators that takes most of the time."""
        most, share = next(iter(self.estimate.shares.items()))
        return f"{self.estimate.headline()}; {units.show(share, 'share')} of it is {most}"

    def rows(self) -> list[Row]:
        """One row per operator, slowest first."""
        return [{name: getattr(each, name) for name in OpTime.__dataclass_fields__} for each in self.operators]


def explained(
    graph: Graph, chip: Chip | Npu, estimate: RunEstimate, measured: Sequence[OpTime] | None = None
) -> GraphExplanation:
    """Explains ``estimate``.

    Args:
        graph: The graph.
        chip: The chip of the estimate.
        estimate: The time of a pass.
        measured: Operators with measured seconds; None to use the law's seconds.
    """
    operators = operators_on(graph, chip) if measured is None else measured
    slowest = sorted(operators, key=lambda each: -(each.seconds or 0.0))
    return GraphExplanation(
        estimate=estimate,
        measured=measured is not None,
        operators=tuple(each for each in slowest if each.kind != "view" or each.seconds),
        modules=modules_of(operators),
        gains=tuple(sorted(_gains(graph, chip, operators), key=lambda each: -each.times)[:MOST_GAINS]),
        flops=graph.flops,
        weight_bytes=graph.weight_bytes,
        uncounted=tuple(f"{op.op_type} {op.name}" for op in graph.uncounted),
    )


def modules_of(operators: Sequence[OpTime]) -> dict[str, float]:
    """Maps each module to its share of the time.

    Module names are cut to a depth at which there are several modules, but not too many. The result is empty if there
    are fewer than two modules.
    """
    whole = sum(each.seconds or 0.0 for each in operators)
    found: dict[str, float] = {}
    for depth in range(1, DEEPEST + 1):
        split: dict[str, float] = defaultdict(float)
        for each in operators:
            split[".".join(each.module.split(".")[:depth])] += (each.seconds or 0.0) / whole if whole else 0.0
        if len(split) > MOST_MODULES and len(found) > 1:
            break
        found = split
        if len(found) > 2 and max(found.values()) < 0.6:
            break
    if len([name for name in found if name]) < 2:
        return {}
    first = sorted(found.items(), key=lambda item: -item[1])[:MOST_MODULES]
    named = {name or "no module": share for name, share in first}
    rest = 1 - sum(named.values())
    return named | ({"other modules": rest} if rest > 0.005 else {})


def _gains(graph: Graph, chip: Chip | Npu, operators: Sequence[OpTime]) -> Iterator[Change]:
    """Predicts what each change would gain on its own.

    A change brings one class of operators to the chip's limit, removes copies between layouts, or uses 8-bit integers.
    """
    whole = sum(each.seconds or 0.0 for each in operators)
    spare: dict[str, float] = defaultdict(float)
    number: Counter[str] = Counter()
    for each in operators:
        if each.seconds is not None and each.kind == LAYOUT:
            spare[each.kind] += each.seconds
        elif each.seconds is not None and each.limit_s is not None:
            spare[each.kind] += max(0.0, each.seconds - each.limit_s)
        number[each.kind] += 1
    for kind, seconds in spare.items():
        times = whole / (whole - seconds) if seconds < whole else 0.0
        if times < LEAST:
            continue
        if kind == LAYOUT:
            copies = counted(number[kind], "copy", "copies")
            why = f"{copies} that the runtime adds; some are not needed if channels are multiples of 16"
            yield Change(what="no copies between layouts", times=times, why=why)
        else:
            many = counted(number[kind], "operator")
            why = f"{many}; this is an upper limit, which assumes that they reach the chip's peak or bandwidth"
            yield Change(what=f"{kind} at the chip's limit", times=times, why=why)
    yield from _narrower(graph, chip, operators, whole)


def _narrower(graph: Graph, chip: Chip | Npu, operators: Sequence[OpTime], whole: float) -> Iterator[Change]:
    """The gain of 8-bit matrix products and convolutions, predicted by the law."""
    if isinstance(chip, Npu):
        times = NpuPrices(chip).graph_s(graph) / NpuPrices(replace(chip, precision="w8a8")).graph_s(graph)
        if chip.precision == "float" and times >= LEAST:
            yield Change(what="8-bit weights and activations (w8a8)", times=times, why="predicted by the law")
        return
    if chip.dtype in ("int8", "int4") or chip.speeds.peak("int8") <= chip.speeds.peak(chip.dtype):
        return
    saved = 0.0
    for op in graph.ops:
        if op.kind in PRODUCTS and op.kind not in ("attention", "transposed conv") and op.flops is not None:
            narrow = replace(op, dtype="int8", weight_bytes=op.weight_bytes // 4)
            now, then = (law().seconds_of(each, chip.speeds) or 0.0 for each in (op, narrow))
            saved += chip.scale * max(0.0, now - then)
    predicted = sum(each.seconds or 0.0 for each in operators_on(graph, chip))
    times = predicted / (predicted - saved) if saved < predicted else 0.0
    if times >= LEAST:
        why = "predicted by the law; chipwise quantize measures the time and the loss"
        yield Change(what="8-bit convolutions and matrix products", times=times, why=why)
