"""Chooses candidates to measure: those near a limit, those that may improve the front, and unusual designs.

There are three modes. ``simulated`` trusts the cost model until the finalists are measured; ``measured`` measures every
candidate that is trained; ``hybrid`` measures candidates where a measurement can change a decision. The front is that
of the run's objectives: the loss after the first training run (equally long for all candidates, with penalties) and
measured or predicted costs. A candidate is measured if the optimistic ends of its intervals would improve the measured
front; the candidate with the largest improvement comes first. Each measurement corrects the cost model, so intervals
shrink and fewer measurements are worthwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.design.limits import Constraint, Objective, is_cost, total_penalty
from chipwise.design.phases.limits import usable
from chipwise.design.run.trials import Candidate
from chipwise.design.strategies.pareto import hypervolume, non_dominated
from chipwise.design.targets.chance import Bounds, value_of

NOVEL = 0.6  # a candidate above this novelty is measured, because nothing similar was
MOST_SHARE = 0.25  # most of the trained candidates that are measured along the front, as a share
Predict = Callable[[Candidate], Mapping[str, Bounds]]  # value and bounds by metric


def worth_measuring(
    mode: str, predicted: Mapping[str, Bounds], limits: Iterable[Constraint], *, novelty: float, headroom: float
) -> str | None:
    """The reason for measuring a candidate before it is trained for longer; None if there is no reason.

    Args:
        mode: ``simulated``, ``measured`` or ``hybrid``.
        predicted: The predicted value of each metric with the bounds of its interval.
        limits: The hard limits.
        novelty: How much the candidate differs from all measured designs, 0 to 1.
        headroom: Share of a limit on a P99 time that may be used; for memory see :func:`usable`.
    """
    if mode == "simulated":
        return None
    if mode == "measured":
        return "every candidate is measured"
    for limit in limits:
        if limit.hard and limit.metric in predicted:
            scale = usable(limit.metric, headroom)
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
    """Measures candidates along the front, until a quarter of all are measured; returns the number of measurements.

    Stops earlier if no measurement can improve the front. A candidate that was measured on a busy machine is measured
    once more at the end.

    Args:
        trained: Returns the candidates that have had their first training run.
        predict: Returns the current prediction of each metric of a candidate, with bounds.
        goals: The run's objectives.
        limits: The hard limits.
        measure: Measures a candidate, records the result and learns from it.
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
    """The candidate whose measurement may improve the front most; None if no measurement can improve it."""
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
    """Interval of an objective's value, negated if it is to be maximised; both ends are equal if the value is known."""
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
    """Both bounds of a prediction; a missing bound is replaced by the predicted value."""
    _, low, high = bounds
    return (value_of(bounds) if low is None else low, value_of(bounds) if high is None else high)


def _tightest(goal: Objective, limits: Sequence[Constraint]) -> float:
    """The tightest hard limit on a goal's metric, negated if the goal is maximised; infinity if there is no limit."""
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
    """The candidate whose measurement may add most to the measured, feasible front; None if no candidate adds enough.

    All objectives are minimised. The value of a measurement is the hypervolume that the front would gain if the
    candidate were measured at the low ends of its intervals. It is large for candidates near the front, near a limit,
    or with wide intervals. Several candidates may have a value within 0.1 % of the largest one. Of these, the one with
    the smallest high ends is chosen. To compare them, each high end is divided by the reference point's value of the
    same objective, and the ratios are added up. As measurements correct the cost model, intervals shrink and fewer
    measurements are valuable.

    Args:
        low: Low ends of the objectives' intervals, (n, m).
        high: High ends of the intervals, (n, m); equal to the low ends of objectives that are known exactly.
        measured: Measured objectives, (n, m); NaN for candidates without a measurement.
        limits: Upper limit of each objective, (m,); infinity if there is none.
        reference: The reference point of the hypervolume, (m,).
        tolerance: Share of the front's hypervolume that a measurement must be able to add.
    """
    done = np.isfinite(measured).all(axis=1)
    feasible = done & (measured <= limits).all(axis=1)
    front = measured[feasible]
    front = front[non_dominated(front)] if len(front) else front
    corner = np.minimum(reference, limits)
    held = hypervolume(front, reference) if len(front) else 0.0
    hopeful = np.flatnonzero(~done & (low < corner).all(axis=1))  # candidates within the limits
    if not len(hopeful):
        return None
    gains = np.array([hypervolume(np.vstack([front, low[i]]), reference) - held for i in hopeful])
    best = int(np.argmax(gains))
    if gains[best] <= tolerance * held:
        return None
    near = hopeful[gains >= 0.999 * gains[best]]
    return int(near[np.argmin((high[near] / reference).sum(axis=1))])
