"""Converts a run's constraints to limits for choosing a pruned model, and predicts its metrics.

Block costs are processor times with random weights, while constraints are about measured values. A constraint is
therefore converted to a share of the original's measured value, and a pruned model may take at most this share of the
original's cost in the cost model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chipwise.design.limits import Constraint
from chipwise.design.phases.limits import HEADROOM
from chipwise.design.run.start_spec import STEERING, TIMES
from chipwise.design.shrink.block_selection import Limits, bare_sizes, bytes_of
from chipwise.design.shrink.sizes import Sizes, cut_arch, whole_sizes
from chipwise.design.shrink.stages import Shrinking
from chipwise.errors import Infeasible

MARGIN = 0.97  # aim at this share of a limit on a median, since two measurements of one model differ by as much


def limits_of(work: Shrinking, constraints: Sequence[Constraint], original: Mapping[str, float]) -> Limits:
    """Limits for choosing a pruned model, from the constraints of a run.

    Assumes that a pruned model and the original have the same ratio of P99 to median, and need the same memory in
    addition to the weights.

    Args:
        work: The original and its block costs.
        constraints: The run's constraints, in SI units.
        original: The original's measured metrics.

    Raises:
        Infeasible: A constraint is too strict for any pruned model; the message names the smallest possible value.
    """
    whole = whole_sizes(work.arch)
    times: dict[str, float] = {}
    memory: float | None = None
    parameters: int | None = None
    for item in constraints:
        if item.metric not in STEERING:
            continue
        _require_reachable(work, item, original)
        if item.metric in TIMES:
            name = item.metric.partition("_")[0]
            share = item.limit * _room(item.metric) / original[item.metric]
            limit_s = share * work.costs[name].cut_s(work.arch, whole)
            times[name] = min(limit_s, times.get(name, limit_s))
        elif item.metric == "peak_memory":
            memory = item.limit - (original[item.metric] - work.whole_bytes)
        else:
            parameters = int(item.limit)
    return Limits(times_s=times, memory_bytes=memory, parameters=parameters)


def promises_of(work: Shrinking, sizes: Sizes, original: Mapping[str, float]) -> dict[str, tuple[float, float, float]]:
    """Predicted metrics of a pruned model (median times and memory), each with a lower and an upper bound.

    A time is the original's measured time, multiplied by the ratio of the pruned model's cost to the original's. Memory
    is the original's measured memory minus the removed weights. The bounds account for the scatter between two
    measurements of the same model.
    """
    whole = whole_sizes(work.arch)
    found = {}
    for metric in TIMES:
        name, _, tail = metric.partition("_")
        if tail == "p50" and metric in original:
            costs = work.costs[name]
            found[metric] = original[metric] * costs.cut_s(work.arch, sizes) / costs.cut_s(work.arch, whole)
    if "peak_memory" in original:
        less = work.whole_bytes - bytes_of(work.arch, sizes, work.value_bytes)
        found["peak_memory"] = original["peak_memory"] - less
    return {metric: (value, MARGIN * value, value / MARGIN) for metric, value in found.items()}


def _require_reachable(work: Shrinking, item: Constraint, original: Mapping[str, float]) -> None:
    """Checks that a model without any block meets the limit."""
    bare, whole = bare_sizes(work.arch), whole_sizes(work.arch)
    if item.metric in TIMES:
        costs = work.costs[item.metric.partition("_")[0]]
        price = costs.cut_s(work.arch, bare) / costs.cut_s(work.arch, whole)
        least = original[item.metric] * price / _room(item.metric)
    elif item.metric == "peak_memory":
        least = original[item.metric] - work.whole_bytes + bytes_of(work.arch, bare, work.value_bytes)
    else:
        least = float(cut_arch(work.arch, bare).parameters())
    if least > item.limit:
        share = 100 * least / original[item.metric]
        raise Infeasible(
            f"no cut can meet {item.metric} {item.text} ({item.show(item.limit)}): even a model without any block "
            f"(only token table, norms and head) needs {item.show(least)}, {share:.0f} % of the original's; "
            "loosen the limit, or start from a smaller model"
        )


def _room(metric: str) -> float:
    return HEADROOM if metric.endswith("_p99") else MARGIN
