"""Chooses which candidates to measure: those where it decides a limit, may move the front, or the model is novelty.

``simulated`` trusts the cost model until the finalists are measured; ``measured`` measures every candidate that is
trained; ``hybrid`` measures where a measurement can change a decision. Along the front, the objectives are quality
after the first training, which all candidates had for equally long and which counts as more where soft limits are
broken, and latency and memory as measured, or within the interval that the cost model gives. A measurement is taken
where the optimistic end of an interval would move the front of what was measured, the largest move first; each one
teaches the cost model, so intervals shrink and fewer are worth it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.design.limits import Constraint, Objective, is_cost, total_penalty
from chipwise.design.run.trials import Candidate
from chipwise.design.strategies.pareto import hypervolume, non_dominated
from chipwise.design.targets.chance import Bounds, value_of

NOVEL = 0.6  # share of the residual's whole spread; above it, few measured designs are similar
MOST_SHARE = 0.25  # of the trained candidates that are measured along the front
Predict = Callable[[Candidate], Mapping[str, Bounds]]  # by metric the value and its bounds


def worth_measuring(
    mode: str, predicted: Mapping[str, Bounds], limits: Iterable[Constraint], *, novelty: float, headroom: float
) -> str | None:
    """The reason to measure a candidate before a longer training, or None.

    Args:
        mode: ``simulated``, ``measured`` or ``hybrid``.
        predicted: By metric the predicted value, and the bounds of its interval.
        limits: What it must keep.
        novelty: How little the model knows of candidates like it, 0 to 1.
        headroom: Share of a tail's limit that it may take.
    """
    if mode == "simulated":
        return None
    if mode == "measured":
        return "every candidate is measured"
    for limit in limits:
        if limit.hard and limit.metric in predicted:
            scale = headroom if limit.metric.endswith("_p99") else 1.0
            _, low, high = predicted[limit.metric]
            if low is None or high is None:
                return f"the chance that {limit.metric} {limit.text} holds is unknown"
            if limit.holds(low / scale) != limit.holds(high / scale):
                return f"its interval straddles {limit.metric} {limit.text}"
    if novelty > NOVEL:
        return "nothing like it was measured"
    return None


def measure_front(
    trained: Callable[[], Sequence[Candidate]],
    predict: Predict,
    goals: Sequence[Objective],
    limits: Sequence[Constraint],
    measure: Callable[[Candidate], object],
) -> int:
    """Measures candidates along the front, at most a quarter of all; returns how many measurements it took.

    A candidate that was measured on a busy machine is measured once more after all others.

    Args:
        trained: The candidates that had their first training, as they stand now.
        predict: Each metric of a candidate with the bounds of its interval, as believed now.
        goals: The run's objectives.
        limits: What a candidate must keep.
        measure: Measures a candidate, records what was found and learns from it.
    """
    done: list[int] = []
    while True:
        items = [item for item in trained() if item.alive and item.after(0) is not None]
        measured = sum(item.measured is not None for item in items)
        best = next_of(items, predict, goals, limits) if measured < MOST_SHARE * len(items) else None
        if best is None:
            break
        measure(best)
        done.append(best.number)
    again = [item for item in trained() if item.alive and item.number in done and not item.notes.clean]
    for item in again:
        measure(item)
    return len(done) + len(again)


def next_of(
    items: Sequence[Candidate], predict: Predict, goals: Sequence[Objective], limits: Sequence[Constraint]
) -> Candidate | None:
    """The candidate whose measurement may move the front most; None if none can, or no goal can be measured."""
    if not items:
        return None
    bounds = [predict(item) for item in items]
    sought = [goal for goal in goals if not is_cost(goal.metric) or goal.metric in bounds[0]]
    if not any(is_cost(goal.metric) for goal in sought):
        return None
    low, high, known = (np.full((len(items), len(sought)), np.nan) for _ in range(3))
    for i, item in enumerate(items):
        for j, goal in enumerate(sought):
            ends = _ends(item, goal, bounds[i], limits)
            low[i, j], high[i, j] = min(ends), max(ends)
        if item.measured is not None and item.notes.within:
            known[i] = low[i]
    chosen = np.flatnonzero([item.measured is None or bool(item.notes.within) for item in items])
    most = np.array([_tightest(goal, limits) for goal in sought])
    reference = high.max(axis=0) + 0.01 * np.abs(high).max(axis=0)
    best = next_to_measure(low[chosen], high[chosen], known[chosen], most, reference)
    return None if best is None else items[chosen[best]]


def _ends(
    item: Candidate, goal: Objective, predicted: Mapping[str, Bounds], limits: Sequence[Constraint]
) -> tuple[float, float]:
    """Interval of a goal, less being better; equal ends where it is known."""
    sign = 1.0 if goal.direction == "minimize" else -1.0
    if not is_cost(goal.metric):
        first = item.after(0)
        assert first is not None
        low, high = (
            1.0
            + total_penalty(
                limits, {metric: _ends_of(bounds)[end] for metric, bounds in predicted.items()} | (item.measured or {})
            )
            for end in (0, 1)
        )
        return first.quantised_loss * low, first.quantised_loss * high
    if item.measured is not None and goal.metric in item.measured:
        return sign * item.measured[goal.metric], sign * item.measured[goal.metric]
    low, high = _ends_of(predicted[goal.metric])
    return sign * low, sign * high


def _ends_of(bounds: Bounds) -> tuple[float, float]:
    """Ends of an interval; the value itself if there is none."""
    _, low, high = bounds
    return (value_of(bounds) if low is None else low, value_of(bounds) if high is None else high)


def _tightest(goal: Objective, limits: Sequence[Constraint]) -> float:
    """The tightest hard limit on a goal's own metric, less being better; infinity where there is none."""
    op = "<=" if goal.direction == "minimize" else ">="
    held = [item for item in limits if item.hard and item.metric == goal.metric and item.op == op]
    found = [item.limit if op == "<=" else -item.limit for item in held]
    return min(found, default=np.inf)


def next_to_measure(
    low: Float64Array,
    high: Float64Array,
    measured: Float64Array,
    limits: Float64Array,
    reference: Float64Array,
    *,
    tolerance: float = 0.0005,
) -> int | None:
    """The candidate whose measurement may add most to the measured, feasible front; None if none adds enough.

    Everything is to be minimised. A candidate may turn out as good as the low ends of its intervals, so what it may
    add is the hypervolume gained at those: large for candidates near the front, for those whose interval a limit
    splits, and for those of which little is known. Of candidates that may add equally much, the one with the lowest
    high ends is taken. As measurements teach the model, intervals shrink and fewer can add anything.

    Args:
        low: Low ends of the objectives' intervals, (n, m).
        high: High ends, (n, m); what is known exactly has both alike.
        measured: Measured objectives, (n, m), NaN if not measured.
        limits: Most of each objective, (m,); infinity where there is none.
        reference: The corner of the hypervolume, (m,).
        tolerance: Share of the front's hypervolume that a measurement must be able to add.
    """
    done = np.isfinite(measured).all(axis=1)
    feasible = done & (measured <= limits).all(axis=1)
    front = measured[feasible]
    front = front[non_dominated(front)] if len(front) else front
    corner = np.minimum(reference, limits)
    held = hypervolume(front, reference) if len(front) else 0.0
    hopeful = np.flatnonzero(~done & (low < corner).all(axis=1))  # within the limits, too
    if not len(hopeful):
        return None
    gains = np.array([hypervolume(np.vstack([front, low[i]]), reference) - held for i in hopeful])
    best = int(np.argmax(gains))
    if gains[best] <= tolerance * held:
        return None
    near = hopeful[gains >= 0.999 * gains[best]]
    return int(near[np.argmin((high[near] / reference).sum(axis=1))])
