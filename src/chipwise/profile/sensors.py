"""What a machine tells of itself while it works: clock, temperature, energy. None where it does not tell.

Loaded inside the measured process, so it imports nothing heavy. ``root`` stands for ``/`` so that tests bring a tree of
their own.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")


def frequency_hz(cpus: Collection[int], *, root: Path = ROOT) -> float | None:
    """Mean clock of the cores ``cpus`` now."""
    found = []
    for cpu in cpus:
        khz = _number(root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq")
        if khz is not None:
            found.append(khz * 1e3)
    return sum(found) / len(found) if found else None


def temperature_c(*, root: Path = ROOT) -> float | None:
    """The hottest thermal zone, degrees Celsius."""
    zones = sorted((root / "sys/class/thermal").glob("thermal_zone*/temp"))
    found = [milli / 1e3 for zone in zones if (milli := _number(zone)) is not None]
    return max(found, default=None)


@dataclass(frozen=True, slots=True)
class EnergyCounters:
    """Joules of every processor package since some moment (RAPL), and where each counter begins again."""

    joules: Mapping[str, float]
    wraps_at_j: Mapping[str, float]

    def since(self, before: EnergyCounters) -> float | None:
        """Joules between two readings, or None where no counter was there at both."""
        spent = None
        for name in self.joules.keys() & before.joules.keys():
            difference = self.joules[name] - before.joules[name]
            if difference < 0:  # began again in between, once
                difference += self.wraps_at_j[name]
            spent = (spent or 0.0) + difference
        return spent


def energy(*, root: Path = ROOT) -> EnergyCounters:
    """The package counters now; empty where there are none or they may not be read.

    References:
        Linux kernel documentation, power/powercap/powercap.rst: ``energy_uj`` and ``max_energy_range_uj``. Domains
        such as ``intel-rapl:0`` are packages; ``intel-rapl:0:1`` is a part of one and would count twice.
    """
    joules, wraps = {}, {}
    for zone in sorted((root / "sys/class/powercap").glob("*-rapl:*")):
        if not re.fullmatch(r"(intel|amd)-rapl:\d+", zone.name):
            continue
        now, wrap = _number(zone / "energy_uj"), _number(zone / "max_energy_range_uj")
        if now is not None and wrap is not None:
            joules[zone.name], wraps[zone.name] = now / 1e6, wrap / 1e6
    return EnergyCounters(joules, wraps)


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None
