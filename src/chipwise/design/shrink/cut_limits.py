"""Converts a run's constraints to limits on cuts, finds limits that no cut can keep, and predicts metrics of a cut.

Block costs are processor times with random weights, while constraints limit measured values. A limit is therefore
converted to a share of the original's measured value, and the cut must keep that share of the original's cost.
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

MARGIN = 0.97  # share of a limit on a median to aim for: two measurements of one model differ by that much


def limits_of(work: Shrinking, constraints: Sequence[Constraint], original: Mapping[str, float]) -> Limits:
    """Limits for choosing a cut.

    Assumptions: the ratio of tails to medians, and the memory of the process other than weights, are those of the
    original.

    Args:
        work: The original and its block costs.
        constraints: Limits of the run.
        original: The original's measured metrics.

    Raises:
        Infeasible: No cut keeps one of them; the message names the closest value.
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
    """Predicted metrics of a cut (median times and memory), with bounds.

    Times are the original's times the cut's share of its cost; memory is the original's minus the removed weights. The
    bounds are the scatter between two measurements of one model.
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
    """Checks each limit against a model without any block, which needs least of everything."""
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
            f"no cut keeps {item.metric} {item.text} ({item.show(item.limit)}): without any block, token table, norms "
            f"and head alone need {item.show(least)}, {share:.0f} % of the original's; allow more than that, "
            "or start from a smaller model"
        )


def _room(metric: str) -> float:
    return HEADROOM if metric.endswith("_p99") else MARGIN
