"""Energy and CO2 of a search: its CPU seconds times the watts of a busy core on the machine that searched.

    joules = CPU seconds * joules of the processor packages / CPU seconds of all processes, while the search ran

If no energy counter is readable, the watts per core are the board power divided by the number of cores, both from the
processor's data sheet. Without a data sheet, both results are unknown; without a stated grid intensity, the CO2 is
unknown. Only processors count: memory, disks, power supplies, other machines and training GPUs are left out.
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
    """Reads this machine's energy counters, and the CPU seconds of all processes since some fixed moment."""
    return sensors.energy(), sensors.read_load(range(os.cpu_count() or 1)).busy_s


class PowerMeter:
    """Adds up the joules of the processor packages and the CPU seconds of all processes while a search runs.

    Args:
        before: The sums, ``joules`` and ``busy_s``, up to the time at which the run was resumed.
        read: Reads the counters. Must be called before the energy counter wraps around, which takes minutes at full
            load.
    """

    def __init__(self, before: Mapping[str, float], *, read: Callable[[], Reading] = read_power) -> None:
        self.held = {name: before.get(name, 0.0) for name in ("joules", "busy_s")}
        self._read, self._mark = read, read()

    def settle(self) -> dict[str, float]:
        """Adds the consumption since the last call; returns both sums, which stay unchanged without a counter."""
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
    """Energy and CO2 of a search; None means unknown. ``source`` says where the watts per core come from."""

    source: str
    watts_per_core: float | None = None
    energy_j: float | None = None
    co2_g_per_kwh: float | None = None
    co2_g: float | None = None

    @property
    def sentence(self) -> str:
        """A sentence that states energy and CO2 with their sources, or says what is unknown."""
        if self.energy_j is None or self.watts_per_core is None:
            return f"Energy and CO2 of the search are unknown: {self.source}."
        joules, watts = units.show(self.energy_j, "energy"), units.show(self.watts_per_core, "power")
        energy = f"The CPU time of the search cost {joules} at {watts} per busy core ({self.source})"
        if self.co2_g is None or self.co2_g_per_kwh is None:
            return f"{energy}; its CO2 is unknown: state the grid's intensity, such as carbon: 350 g/kWh."
        return f"{energy}, and {units.show(self.co2_g, 'mass')} of CO2 at {self.co2_g_per_kwh:,.4g} g/kWh (stated)."


def footprint(
    spent: Mapping[str, float], *, cpu: str, measured: Mapping[str, float], carbon: str | float | None
) -> Footprint | None:
    """The footprint of a search; None before its first phase ends.

    Args:
        spent: CPU seconds by phase.
        cpu: The processor's name, as the system reports it.
        measured: The sums that a :class:`PowerMeter` returned.
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
    """Watts per core from the processor's data sheet, and their source; or None, and why they are unknown."""
    fits = [sheet for sheet in map(datasheet.load, matching(cpu, gpu=False)) if sheet.kind == "cpu"]
    unread = f"no energy counter is readable (/sys/class/powercap), and {cpu}"
    if len(fits) != 1:
        return None, f"{unread} matches {'no data sheet' if not fits else 'several data sheets'}"
    sheet = fits[0]
    cores = sum(each.units.number for each in sheet.engines if each.kind == "vector" and each.units is not None)
    if sheet.board_power is None or not cores:
        return None, f"{unread}'s data sheet lacks power or cores"
    watts = sheet.board_power.number
    return (
        watts / cores,
        f"analytic: {units.show(watts, 'power')} for {cores:g} cores, from the data sheet of {sheet.title}",
    )
