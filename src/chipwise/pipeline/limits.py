"""The limits of a run: headroom for tails, penalties of soft limits, the reference design's pace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from chipwise.core import units
from chipwise.hardware import datasheet
from chipwise.run.spec import RunSpec
from chipwise.run.trials import Candidate
from chipwise.space import Constraint
from chipwise.space.constraints import POWER_METRICS, broken, soft_limit_on_latency, total_penalty
from chipwise.space.device_pricer import DevicePricer, design_costs
from chipwise.spec import Design

HEADROOM = 0.85  # share of a P99 limit that a candidate may use before training; tails differ from day to day


def within(limits: Iterable[Constraint], values: Mapping[str, float], *, headroom: float = 1.0) -> bool:
    """Whether ``values`` keep all hard limits, tails of latency with ``headroom``."""
    strained = {name: value / headroom if name.endswith("_p99") else value for name, value in values.items()}
    return not broken(limits, strained)


def no_slower_than(
    references: Sequence[Candidate], limits: Sequence[Constraint], *, measured: bool = True
) -> tuple[Constraint, ...]:
    """The limit that a winner is no slower per token than the slowest of the reference designs.

    There is none where a soft limit allows exceeding that time. Where nothing is
    ``measured``, predicted times are compared.
    """
    times = [item.costs["tpot_p50"] for item in references if item.measured or not measured]
    if soft_limit_on_latency(limits) or not times:
        return ()
    cap = max(times)
    text = f"<= {units.show(cap, 'time')} (the reference design's)"
    return (Constraint(metric="tpot_p50", op="<=", limit=cap, text=text),)


def penalty_factor(spec: RunSpec) -> Callable[[Candidate], float]:
    """Factor on a candidate's bits per byte: 1, or more where soft limits are exceeded, here or on other devices.

    Costs are as measured, else as predicted.
    """
    here = [item for item in spec.limits if not item.hard]
    elsewhere = [item for item in spec.limits_elsewhere if not item.hard]
    needed = [item.metric.partition("@")[::2] for item in elsewhere]
    with_energy = {name for metric, name in needed if metric in POWER_METRICS}
    pricers = {name: DevicePricer(datasheet.load(name), joules=name in with_energy) for _, name in needed}
    known: dict[Design, dict[str, float]] = {}

    def costs_elsewhere(design: Design) -> dict[str, float]:
        if design not in known:
            known[design] = {
                f"{metric}@{name}": value
                for name, pricer in pricers.items()
                for metric, value in design_costs(design, spec.workload, pricer).items()
            }
        return known[design]

    return lambda item: 1.0 + total_penalty(here, item.costs) + total_penalty(elsewhere, costs_elsewhere(item.design))
