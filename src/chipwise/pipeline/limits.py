"""The limits of a run: headroom for tails, penalties of soft limits, sustained speed, the reference design's pace.

A limit on sustained speed is stated for a hot machine and checked on a cold one: ``tpot_sustained: <= 3 ms`` on a
machine that keeps two thirds of its speed is ``tpot_p50: <= 2 ms`` as it is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from chipwise.core import units
from chipwise.core.errors import Unsupported
from chipwise.hardware import datasheet
from chipwise.hardware.device import MachineProfile, Thermal
from chipwise.run.spec import RunSpec
from chipwise.run.trials import Candidate
from chipwise.space import Constraint
from chipwise.space.constraints import POWER_METRICS, broken, parse_constraints, soft_limit_on_latency, total_penalty
from chipwise.space.device_pricer import DevicePricer, design_costs
from chipwise.spec import Design

HEADROOM = 0.85  # of a P99 limit that a candidate may take before it is trained; tails differ from day to day
SUSTAINED = "tpot_sustained"


def within(limits: Iterable[Constraint], values: Mapping[str, float], *, headroom: float = 1.0) -> bool:
    """Whether ``values`` keep all hard limits, tails of latency with ``headroom``."""
    strained = {name: value / headroom if name.endswith("_p99") else value for name, value in values.items()}
    return not broken(limits, strained)


def no_slower_than(references: Sequence[Candidate], limits: Sequence[Constraint]) -> tuple[Constraint, ...]:
    """The limit that a winner may not take longer for a token than the slowest of the reference designs.

    There is none where a soft limit allows to pay for that time: the reference design keeps within it.
    """
    measured = [item.measured["tpot_p50"] for item in references if item.measured]
    if soft_limit_on_latency(limits) or not measured:
        return ()
    cap = max(measured)
    text = f"<= {units.show(cap, 'time')} (the reference design's)"
    return (Constraint(metric="tpot_p50", op="<=", limit=cap, text=text),)


def penalty_factor(spec: RunSpec) -> Callable[[Candidate], float]:
    """What one bit per byte of a candidate counts as: 1, and more past soft limits, here or on other devices.

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


def with_cold_limits(spec: RunSpec, profile: MachineProfile) -> RunSpec:
    """``spec`` with its limits on sustained speed as limits on the cold median.

    Raises:
        Unsupported: There is such a limit, and the machine was never observed under sustained load.
    """
    if SUSTAINED not in spec.constraints:
        return spec
    if profile.thermal is None:
        raise Unsupported(
            f"constraints.{SUSTAINED}: how much of its speed {profile.machine.name} keeps under load is not known; "
            f"run: chipwise calibrate --runtime {profile.runtime}, then: chipwise measure MODEL --sustained 10m"
        )
    return replace(spec, constraints=cold(spec.constraints, profile.thermal))


def cold(constraints: Mapping[str, Any], thermal: Thermal) -> dict[str, Any]:
    """``constraints`` with those on sustained speed restated for a cold machine."""
    rest = {name: value for name, value in constraints.items() if name != SUSTAINED}
    restated: list[Any] = []
    for limit in parse_constraints({SUSTAINED: constraints[SUSTAINED]}):
        text = f"{limit.op} {limit.limit * thermal.sustained_share:.9g} s"
        restated.append(text if limit.hard else {"limit": text, "penalty": limit.penalty})
    known = rest.get("tpot_p50", [])
    rest["tpot_p50"] = [*(known if isinstance(known, list) else [known]), *restated]
    return rest
