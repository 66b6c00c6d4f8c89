"""Hybrid profiling along the front: of what was trained, that is measured which may change who is best at what.

The objectives are those of the run: quality after the first training, which all candidates had for equally long and
which counts as more where soft limits are broken, and latency and memory as measured, or within the interval that the
cost model gives. A measurement is taken where the optimistic end of an interval would move the front of what was
measured, the largest move first; each one teaches the cost model, so intervals shrink and fewer are worth it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from chipwise.pipeline.profiling import next_to_measure
from chipwise.run.trials import Candidate
from chipwise.space.constraints import Constraint, Objective, total_penalty

MOST_SHARE = 0.25  # of the candidates that were trained


def measure_front(
    trained: Callable[[], Sequence[Candidate]],
    promise: Callable[[Candidate], Mapping[str, Sequence[float]]],
    goals: Sequence[Objective],
    limits: Sequence[Constraint],
    measure: Callable[[Candidate], object],
) -> int:
    """Measures candidates along the front, at most a quarter of all, and says how many measurements it took.

    What was measured at a bad moment is measured once more after all others.

    Args:
        trained: The candidates that had their first training, as they stand now.
        promise: Each metric of a candidate with the bounds of its interval, as believed now.
        goals: What the run seeks.
        limits: What a candidate must keep.
        measure: Measures a candidate, notes what was found and learns from it.
    """
    done: list[int] = []
    while True:
        items = [item for item in trained() if item.alive and item.after(0) is not None]
        measured = sum(item.measured is not None for item in items)
        best = next_of(items, promise, goals, limits) if measured < MOST_SHARE * len(items) else None
        if best is None:
            break
        measure(best)
        done.append(best.number)
    again = [item for item in trained() if item.alive and item.number in done and not item.trial.notes["clean"]]
    for item in again:
        measure(item)
    return len(done) + len(again)


def next_of(
    items: Sequence[Candidate],
    promise: Callable[[Candidate], Mapping[str, Sequence[float]]],
    goals: Sequence[Objective],
    limits: Sequence[Constraint],
) -> Candidate | None:
    """The candidate whose measurement may move the front most; None where none may, or nothing measurable is sought."""
    if not items:
        return None
    bounds = [promise(item) for item in items]
    sought = [goal for goal in goals if goal.metric == "bits_per_byte" or goal.metric in bounds[0]]
    if all(goal.metric == "bits_per_byte" for goal in sought):
        return None
    low, high, known = (np.full((len(items), len(sought)), np.nan) for _ in range(3))
    for i, item in enumerate(items):
        for j, goal in enumerate(sought):
            ends = _ends(item, goal, bounds[i], limits)
            low[i, j], high[i, j] = min(ends), max(ends)
        if item.measured is not None and item.trial.notes["within"]:
            known[i] = low[i]
    chosen = np.flatnonzero([item.measured is None or item.trial.notes["within"] for item in items])
    most = np.array([_most(goal, limits) for goal in sought])
    reference = high.max(axis=0) + 0.01 * np.abs(high).max(axis=0)
    best = next_to_measure(low[chosen], high[chosen], known[chosen], most, reference)
    return None if best is None else items[chosen[best]]


def _ends(
    item: Candidate, goal: Objective, promised: Mapping[str, Sequence[float]], limits: Sequence[Constraint]
) -> tuple[float, float]:
    """Both ends of a goal's interval, less being better; alike where it is known."""
    sign = 1.0 if goal.direction == "minimize" else -1.0
    if goal.metric == "bits_per_byte":
        value = float((item.after(0) or {})["quantised_bits_per_byte"])
        low, high = (
            1.0
            + total_penalty(limits, {name: bounds[end] for name, bounds in promised.items()} | (item.measured or {}))
            for end in (1, 2)
        )
        return sign * value * low, sign * value * high
    if item.measured is not None and goal.metric in item.measured:
        return sign * item.measured[goal.metric], sign * item.measured[goal.metric]
    _, low, high = promised[goal.metric]
    return sign * low, sign * high


def _most(goal: Objective, limits: Sequence[Constraint]) -> float:
    """The tightest hard limit on a goal's own metric, less being better; infinity where there is none."""
    op = "<=" if goal.direction == "minimize" else ">="
    held = [item for item in limits if item.hard and item.metric == goal.metric and item.op == op]
    found = [item.limit if op == "<=" else -item.limit for item in held]
    return min(found, default=np.inf)
