"""A pass as a tree of its operators, with their times, shares and bounds: what screens and ``print`` show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chipwise.core import units
from chipwise.cost.model import CostEstimate, OpCost


def text(found: CostEstimate) -> str:
    """The estimate for a person: what a request takes, then each pass operator by operator."""
    several = f"{found.devices} x " if found.devices > 1 else ""
    times = f"TTFT {units.show(found.ttft_s, 'time')}"
    if found.decode:
        times += f", TPOT {units.show(found.tpot_s, 'time')}"
    memory = units.show(found.peak_memory_bytes, "bytes")
    lines = [f"{several}{found.device}, {found.runtime}: {times}, {memory}: {found.provenance}", *passes(found)]
    return "\n".join([*lines, *(f"note: {note}" for note in found.notes)])


def passes(found: CostEstimate) -> Iterator[str]:
    """The trees of the passes that there are, line by line."""
    yield from tree("prefill" if found.decode else "the pass", found.prefill)
    yield from tree("decode step", found.decode)


def tree(name: str, costs: Sequence[OpCost]) -> Iterator[str]:
    """One pass: groups of layers, and the operators of each; nothing of a pass that there is not."""
    if not costs:
        return
    total = sum(cost.latency_s for cost in costs)
    yield f"{name}: kernels {units.show(total, 'time')}"
    groups: dict[str, list[OpCost]] = {}
    for cost in costs:
        groups.setdefault(cost.place.split(".")[0], []).append(cost)
    for number, (group, members) in enumerate(groups.items(), start=1):
        last = number == len(groups)
        spent = sum(cost.latency_s for cost in members)
        yield f"{'└' if last else '├'}── {group}  {_spent(spent, total)}"
        for place, cost in enumerate(members, start=1):
            line = f"{' ' if last else '│'}   {'└' if place == len(members) else '├'}── "
            line += f"{cost.place.partition('.')[2] or cost.place}  {_spent(cost.latency_s, total)}  {cost.bound.value}"
            yield line + (f"  x{cost.count}" if cost.count > 1 else "")


def _spent(seconds: float, total: float) -> str:
    return f"{units.show(seconds, 'time')}  {units.show(seconds / total, 'share')}"
