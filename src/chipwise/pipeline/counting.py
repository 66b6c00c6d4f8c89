"""What a bit per byte counts as: 1, and more where a design is past soft limits, here or on other devices."""

from __future__ import annotations

from collections.abc import Callable

from chipwise.hardware import datasheet
from chipwise.pipeline.devices import DevicePricer, design_costs
from chipwise.run.spec import RunSpec
from chipwise.run.trials import Candidate
from chipwise.space.constraints import POWER_METRICS, total_penalty
from chipwise.spec import Design


def counting(spec: RunSpec) -> Callable[[Candidate], float]:
    """What one bit per byte of a candidate counts as, by its costs as measured, else as predicted."""
    here = [item for item in spec.limits if not item.hard]
    there = [item for item in spec.limits_elsewhere if not item.hard]
    asked = [item.metric.partition("@")[::2] for item in there]
    drawn = {name for metric, name in asked if metric in POWER_METRICS}
    pricers = {name: DevicePricer(datasheet.load(name), joules=name in drawn) for _, name in asked}
    known: dict[Design, dict[str, float]] = {}

    def elsewhere(design: Design) -> dict[str, float]:
        if design not in known:
            known[design] = {
                f"{metric}@{name}": value
                for name, pricer in pricers.items()
                for metric, value in design_costs(design, spec.workload, pricer).items()
            }
        return known[design]

    return lambda item: 1.0 + total_penalty(here, item.costs) + total_penalty(there, elsewhere(item.design))
