"""Which candidates are worth a measurement: where it decides a constraint, may move the front, or the model is unsure.

``simulated`` believes the cost model until the finalists are measured; ``measured`` measures every candidate that is
trained; ``hybrid`` measures where a measurement can change what is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.optim.pareto import hypervolume, non_dominated
from chipwise.space import Constraint

Profiling = Literal["simulated", "measured", "hybrid"]
UNSURE = 0.6  # of the residual's whole spread: little of what was measured is like this candidate


def worth_measuring(
    mode: str, promise: Mapping[str, Sequence[float]], limits: Iterable[Constraint], *, unsure: float, headroom: float
) -> str | None:
    """Why a candidate that is wanted for longer training is measured first, or None where it need not be.

    Args:
        mode: ``simulated``, ``measured`` or ``hybrid``.
        promise: By metric the predicted value, and the bounds of its interval.
        limits: What it must keep.
        unsure: How little the model knows of candidates like it, 0 to 1.
        headroom: Share of a tail's limit that it may take.
    """
    if mode == "simulated":
        return None
    if mode == "measured":
        return "every candidate is measured"
    for limit in limits:
        if limit.hard and limit.metric in promise:
            scale = headroom if limit.metric.endswith("_p99") else 1.0
            _, low, high = promise[limit.metric]
            if limit.holds(low / scale) != limit.holds(high / scale):
                return f"its interval straddles {limit.metric} {limit.text}"
    if unsure > UNSURE:
        return "nothing like it was measured"
    return None


def next_to_measure(
    low: Float64Array,
    high: Float64Array,
    measured: Float64Array,
    limits: Float64Array,
    reference: Float64Array,
    *,
    tolerance: float = 0.0005,
) -> int | None:
    """The candidate whose measurement may add most to the measured, feasible front; None where none adds enough.

    Everything is to be minimised. A candidate may turn out as good as the low ends of its intervals, so what it may
    add is the hypervolume gained at those: large for candidates near the front, for those that a limit lies across, and
    for those of which little is known. As measurements teach the model, intervals shrink and fewer can add anything.

    Args:
        low: Low ends of the objectives' intervals, (n, m).
        high: High ends, (n, m); what is known exactly has both alike.
        measured: Measured objectives, (n, m), NaN where not measured.
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
    hopeful = np.flatnonzero(~done & (low <= limits).all(axis=1) & (low < corner).all(axis=1))
    if not len(hopeful):
        return None
    gains = np.array([hypervolume(np.vstack([front, low[i]]), reference) - held for i in hopeful])
    best = int(np.argmax(gains))
    if gains[best] <= tolerance * held:
        return None
    near = hopeful[gains >= 0.999 * gains[best]]
    return int(near[np.argmin((high[near] / reference).sum(axis=1))])
