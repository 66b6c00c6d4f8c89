"""Joules and grams of CO2 of a search: CPU seconds times the watts of a busy core of the machine that searched.

    joules = CPU seconds * joules of the processor packages / CPU seconds of all processes, while the search ran

Where no energy counter is readable, the watts per core are the board power over the cores of the processor's data
sheet. Without either, or without a stated grid intensity, the number is unknown. Only processors count: memory, disks,
power supplies and other machines, or GPUs that train, do not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from chipwise.core import units
from chipwise.deploy.kits.kits import matching
from chipwise.deploy.measure import sensors
from chipwise.hardware import datasheet
from chipwise.predict.cost.ownership import grams_per_kwh

Reading = tuple[sensors.EnergyCounters, float | None]  # counters, and CPU seconds of all processes


def read_power() -> Reading:
    """This machine's energy counters and the CPU seconds of all its processes, since some moment."""
    return sensors.energy(), sensors.read_load(range(os.cpu_count() or 1)).busy_s


class PowerMeter:
    """Joules of the processor packages and CPU seconds of all processes while a search runs.

    Args:
        before: ``joules`` and ``busy_s`` of earlier sessions.
        read: Reads the counters. Read at least once per lap of the energy counter: minutes at full load.
    """

    def __init__(self, before: Mapping[str, float], *, read: Callable[[], Reading] = read_power) -> None:
        self.held = {name: before.get(name, 0.0) for name in ("joules", "busy_s")}
        self._read, self._mark = read, read()

    def settle(self) -> dict[str, float]:
        """Adds what was spent since the last call; returns the sums. Both stay the same without a counter."""
        if not self._mark[0].joules:
            return self.held
        (before, busy_before_s), self._mark = self._mark, self._read()
        counters, busy_s = self._mark
        joules = counters.since(before)
        if joules is not None and busy_s is not None and busy_before_s is not None:
            self.held["joules"] += joules
            self.held["busy_s"] += busy_s - busy_before_s
        return self.held


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What a search cost in joules and grams of CO2; None is unknown. ``source`` is where the watts come from."""

    source: str
    watts_per_core: float | None = None
    energy_j: float | None = None
    co2_g_per_kwh: float | None = None
    co2_g: float | None = None

    @property
    def sentence(self) -> str:
        """Both numbers with their sources, or what is unknown."""
        if self.energy_j is None or self.watts_per_core is None:
            return f"Energy and CO2 of the search are unknown: {self.source}."
        joules, watts = units.show(self.energy_j, "energy"), units.show(self.watts_per_core, "power")
        energy = f"The CPU time of the search cost {joules} at {watts} per busy core ({self.source})"
        if self.co2_g is None or self.co2_g_per_kwh is None:
            return f"{energy}; its CO2 is unknown: state the grid's, such as carbon: 350 g/kWh."
        return f"{energy}, and {units.show(self.co2_g, 'mass')} of CO2 at {self.co2_g_per_kwh:,.4g} g/kWh (stated)."


def footprint(
    spent: Mapping[str, float], *, cpu: str, measured: Mapping[str, float], carbon: str | float | None
) -> Footprint | None:
    """The footprint of a search; None before its first phase ends.

    Args:
        spent: CPU seconds by phase.
        cpu: The processor's name, as the system reports it.
        measured: Sums of a :class:`PowerMeter`.
        carbon: Stated grid intensity, such as ``350 g/kWh``; None if unknown.
    """
    if not spent:
        return None
    intensity = None if carbon is None else grams_per_kwh(carbon, "carbon")
    if measured.get("busy_s"):
        watts: float | None = measured["joules"] / measured["busy_s"]
        source = "measured: energy counters of the processor packages"
    else:
        watts, source = _listed(cpu)
    if watts is None:
        return Footprint(source=source, co2_g_per_kwh=intensity)
    energy_j = sum(spent.values()) * watts
    return Footprint(
        source=source,
        watts_per_core=watts,
        energy_j=energy_j,
        co2_g_per_kwh=intensity,
        co2_g=None if intensity is None else energy_j / units.UNITS["energy"]["kWh"] * intensity,
    )


def _listed(cpu: str) -> tuple[float | None, str]:
    """Board power over cores by the data sheet of a processor, with its source; None and why it is unknown."""
    fits = [sheet for sheet in map(datasheet.load, matching(cpu, gpu=False)) if sheet.kind == "cpu"]
    unread = f"no energy counter is readable (/sys/class/powercap), and {cpu}"
    if len(fits) != 1:
        return None, f"{unread} fits {'no data sheet' if not fits else 'several data sheets'}"
    sheet = fits[0]
    cores = sum(each.units.number for each in sheet.engines if each.kind == "vector" and each.units is not None)
    if sheet.board_power is None or not cores:
        return None, f"{unread} has no power on its data sheet"
    watts = sheet.board_power.number
    return (
        watts / cores,
        f"analytic: {units.show(watts, 'power')} for {cores:g} cores on the data sheet of {sheet.title}",
    )
