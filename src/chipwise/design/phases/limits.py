"""A run's limits: headroom below limits on P99 times, penalties of soft limits, and the reference design's latency."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from chipwise.core import units
from chipwise.design.limits import DERIVED, Constraint, broken, soft_limit_on_latency, total_penalty
from chipwise.design.run.spec import RunSpec
from chipwise.design.run.trials import Candidate
from chipwise.design.targets.chance import Bounds, values_of
from chipwise.model.arch.design import Design

HEADROOM = 0.85  # share of a P99 limit that may be used before training, because tails vary from day to day
MEMORY_HEADROOM = 0.995  # share of a memory limit that may be used: processes of one model vary by up to 0.4 of 80 MB
TRADED = 1.3  # factor on time that is worth an expected loss that is lower by the noise between seeds
CLEARLY = 0.9  # an equally good design wins if it takes at most this share of the best one's time


def within(limits: Iterable[Constraint], values: Mapping[str, float], *, headroom: float = 1.0) -> bool:
    """Whether ``values`` meet all hard limits when only the :func:`usable` share of each limit may be used."""
    return not broken(limits, {name: value / usable(name, headroom) for name, value in values.items()})


def usable(metric: str, headroom: float) -> float:
    """Share of a limit that may be used: ``headroom`` for P99 times, ``MEMORY_HEADROOM`` or more for memory, else 1.

    Memory varies less between processes than times vary between days. But if the whole limit could be used, chance
    would decide whether a reference design just below it is accepted, and the sizes of all other designs follow from
    the reference design's size.
    """
    if metric.endswith("_p99"):
        return headroom
    return max(headroom, MEMORY_HEADROOM) if metric == "peak_memory" else 1.0


def with_headroom(limits: Iterable[Constraint]) -> tuple[Constraint, ...]:
    """The ``limits``, the upper ones of them lowered to the share that may be used by predictions; see ``usable``."""
    return tuple(
        replace(item, limit=item.limit * usable(item.metric, HEADROOM)) if item.hard and item.op == "<=" else item
        for item in limits
    )


def worst_excess(limits: Iterable[Constraint], values: Mapping[str, float]) -> float:
    """Largest relative excess of ``values`` over a hard limit; 0 if all are met."""
    known = [item for item in limits if item.hard and item.metric in values]
    return max([0.0, *(item.excess(values[item.metric]) for item in known)])


def no_slower_than(
    references: Sequence[Candidate],
    limits: Sequence[Constraint],
    *,
    measured: bool = True,
    pace: str = "tpot_p50",
) -> tuple[Constraint, ...]:
    """A limit on the latency ``pace``: a winner must not be slower than the slowest reference design.

    Empty if a soft limit trades latency for quality. If ``measured`` is False, predicted times are used too.
    """
    times = [item.costs[pace] for item in references if item.measured or not measured]
    if soft_limit_on_latency(limits) or not times:
        return ()
    cap = max(times)
    text = f"<= {units.show(cap, 'time')} (the reference design's)"
    return (Constraint(metric=pace, op="<=", limit=cap, text=text),)


def latency_to_lower(spec: RunSpec) -> str | None:
    """The latency metric by which the fastest of equally good designs wins.

    None if latency is not an objective, or if a soft limit already trades time for quality.
    """
    pace = spec.task_settings.latency_metric
    wanted = any(goal.metric in {pace, *DERIVED} for goal in spec.goals)
    return pace if wanted and not soft_limit_on_latency(spec.limits) else None


def traded(spec: RunSpec) -> tuple[str, float] | None:
    """A latency metric, and how much higher the expected ln loss of a faster design may be; or None."""
    latency = latency_to_lower(spec)
    return None if latency is None else (latency, spec.task_settings.metric.seed_sd)


def as_good_but_faster(
    spec: RunSpec,
    items: Iterable[Candidate],
    best: Candidate,
    *,
    loss: Callable[[Candidate], float],
    seconds: Callable[[Candidate], float | None],
) -> list[Candidate]:
    """Selects the ``items`` that are clearly faster than ``best`` and as good within seed noise, fastest first.

    Empty if the run has no :func:`latency_to_lower`.
    """
    own = seconds(best)
    if own is None or latency_to_lower(spec) is None:
        return []
    enough = loss(best) * math.exp(spec.task_settings.metric.seed_sd)
    timed = [(seconds(item), item.number, item) for item in items if loss(item) <= enough]
    return [
        item
        for time_s, _, item in sorted(timed, key=lambda row: (row[0] or own, row[1]))
        if time_s is not None and time_s <= CLEARLY * own
    ]


def penalty_factor(
    spec: RunSpec, elsewhere: Callable[[Design], Mapping[str, Bounds]] = lambda design: {}
) -> Callable[[Candidate], float]:
    """Returns the factor on a candidate's loss: 1, or more if it exceeds soft limits on the target or other devices.

    Measured costs are used where there are any, else predicted ones; ``elsewhere`` predicts costs on other devices.
    """
    here = [item for item in spec.limits if not item.hard]
    there = [item for item in spec.limits_elsewhere if not item.hard]

    def factor(item: Candidate) -> float:
        more = total_penalty(there, values_of(elsewhere(item.design))) if there else 0.0
        return 1.0 + total_penalty(here, item.costs) + more

    return factor
