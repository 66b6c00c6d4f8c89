"""A run's limits: headroom for tails, penalties of soft limits, and the reference design's latency."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from chipwise.core import units
from chipwise.design.limits import DERIVED, Constraint, broken, soft_limit_on_latency, total_penalty
from chipwise.design.run.spec import RunSpec
from chipwise.design.run.trials import Candidate
from chipwise.design.targets.chance import Bounds, values_of
from chipwise.model.arch.design import Design

HEADROOM = 0.85  # share of a P99 limit that may be used before training, because tails vary from day to day
MEMORY_HEADROOM = 0.995  # the same of a limit on memory: processes of one model differ by up to 0.4 MB of 80
TRADED = 0.5  # share of the noise of seeds lost to a faster design before training; formats are chosen after it
CLEARLY = 0.9  # an equally good design wins if it takes at most this share of the best one's time


def within(limits: Iterable[Constraint], values: Mapping[str, float], *, headroom: float = 1.0) -> bool:
    """Whether ``values`` keep all hard limits, of which only :func:`usable` shares may be used."""
    return not broken(limits, {name: value / usable(name, headroom) for name, value in values.items()})


def usable(metric: str, headroom: float) -> float:
    """Share of a limit that may be used: ``headroom`` of tails, most of memory unless there is no headroom, else all.

    Memory differs less between processes than times between days, but a design within the last half per cent of its
    limit is chosen or refused by chance, and the sizes of a run's other designs follow the reference design's.
    """
    if metric.endswith("_p99"):
        return headroom
    return max(headroom, MEMORY_HEADROOM) if metric == "peak_memory" else 1.0


def worst_excess(limits: Iterable[Constraint], values: Mapping[str, float]) -> float:
    """Largest relative excess of ``values`` over a hard limit; 0 if all hold."""
    known = [item for item in limits if item.hard and item.metric in values]
    return max([0.0, *(item.excess(values[item.metric]) for item in known)])


def no_slower_than(
    references: Sequence[Candidate],
    limits: Sequence[Constraint],
    *,
    measured: bool = True,
    pace: str = "tpot_p50",
) -> tuple[Constraint, ...]:
    """The limit that a winner is at most as slow as the slowest reference design, in the latency ``pace``.

    There is no such limit if a soft limit trades that time for quality. If nothing is ``measured``, predicted times are
    used.
    """
    times = [item.costs[pace] for item in references if item.measured or not measured]
    if soft_limit_on_latency(limits) or not times:
        return ()
    cap = max(times)
    text = f"<= {units.show(cap, 'time')} (the reference design's)"
    return (Constraint(metric=pace, op="<=", limit=cap, text=text),)


def latency_to_lower(spec: RunSpec) -> str | None:
    """The latency in which the fastest of equally good designs wins.

    None if latency is no objective, or if a soft limit already trades time for quality.
    """
    pace = spec.task_settings.latency_metric
    wanted = any(goal.metric in {pace, *DERIVED} for goal in spec.goals)
    return pace if wanted and not soft_limit_on_latency(spec.limits) else None


def traded(spec: RunSpec) -> tuple[str, float] | None:
    """A latency, and by how much the ln loss of a clearly faster design may be higher before any training."""
    latency = latency_to_lower(spec)
    return None if latency is None else (latency, TRADED * spec.task_settings.metric.seed_sd)


def as_good_but_faster(
    spec: RunSpec,
    items: Iterable[Candidate],
    best: Candidate,
    *,
    loss: Callable[[Candidate], float],
    seconds: Callable[[Candidate], float | None],
) -> list[Candidate]:
    """Those of ``items`` that are clearly faster than ``best`` and as good within the noise of seeds, fastest first.

    None without a :func:`latency_to_lower`.
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
    """Factor on a candidate's loss: 1, or more if soft limits are exceeded, on this or on other devices.

    Costs are measured if possible, else predicted; ``elsewhere`` predicts costs on other devices.
    """
    here = [item for item in spec.limits if not item.hard]
    there = [item for item in spec.limits_elsewhere if not item.hard]

    def factor(item: Candidate) -> float:
        more = total_penalty(there, values_of(elsewhere(item.design))) if there else 0.0
        return 1.0 + total_penalty(here, item.costs) + more

    return factor
