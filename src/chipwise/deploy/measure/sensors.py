"""Reads load, memory, clock, temperature and energy of the machine; None for a missing sensor.

The measured process imports this module, so it imports nothing heavy. ``root`` replaces ``/`` in tests.
"""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReading:
    """Load counters at one moment. The load over a period is the difference of two readings."""

    wall_s: float
    process_cpu_s: float  # seconds of this process: all threads, user and system
    involuntary_switches: int
    busy_s: float | None  # sum over the measured cores: user, nice, system, interrupts
    elsewhere_s: float | None  # same for all other cores
    steal_s: float | None  # time that the hypervisor took from the measured cores
    load: float | None  # mean number of runnable tasks over the last minute


def read_load(cpus: Collection[int]) -> LoadReading:
    """Load counters of the cores ``cpus`` at this moment."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    busy, steal = _cpu_times(cpus)
    elsewhere, _ = _cpu_times(set(range(os.cpu_count() or 1)) - set(cpus))
    try:
        load: float | None = os.getloadavg()[0]
    except OSError:
        load = None
    return LoadReading(
        wall_s=time.perf_counter(),
        process_cpu_s=usage.ru_utime + usage.ru_stime,
        involuntary_switches=usage.ru_nivcsw,
        busy_s=busy,
        elsewhere_s=elsewhere,
        steal_s=steal,
        load=load,
    )


def _cpu_times(cpus: Collection[int]) -> tuple[float | None, float | None]:
    names = {f"cpu{cpu}" for cpu in cpus}
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return None, None
    busy = steal = 0.0
    for line in lines:
        name, *fields = line.split()
        if name in names:
            user, nice, system, _idle, _wait, irq, softirq, stolen = (int(field) for field in fields[:8])
            busy += (user + nice + system + irq + softirq) * _TICK_S
            steal += stolen * _TICK_S
    return busy, steal


def idlest_cpus(count: int, *, look_s: float = 0.1) -> tuple[int, ...]:
    """The ``count`` least busy cores over the next ``look_s`` seconds, among those this process may use."""
    if not hasattr(os, "sched_getaffinity"):
        return tuple(range(count))
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) <= count:
        return tuple(allowed)
    before = {cpu: _cpu_times([cpu])[0] or 0.0 for cpu in allowed}
    time.sleep(look_s)
    use = {cpu: (_cpu_times([cpu])[0] or 0.0) - before[cpu] for cpu in allowed}
    return tuple(sorted(sorted(allowed, key=lambda cpu: use[cpu])[:count]))


def pin(cpus: Collection[int]) -> None:
    """Pins this process and its future threads to the cores ``cpus``, if the system supports it."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)


def status_bytes(field: str) -> int | None:
    """A memory field of this process in bytes, such as ``VmHWM`` (peak resident) or ``VmRSS``."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def frequency_hz(cpus: Collection[int], *, root: Path = ROOT) -> float | None:
    """Mean clock of the cores ``cpus`` at this moment."""
    files = (root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq" for cpu in cpus)
    found = [khz * 1e3 for file in files if (khz := _number(file)) is not None]
    return sum(found) / len(found) if found else None


def temperature_c(*, root: Path = ROOT) -> float | None:
    """Temperature of the hottest thermal zone in degrees Celsius."""
    zones = sorted((root / "sys/class/thermal").glob("thermal_zone*/temp"))
    found = [milli / 1e3 for zone in zones if (milli := _number(zone)) is not None]
    return max(found, default=None)


@dataclass(frozen=True, slots=True)
class EnergyCounters:
    """Joules of every processor package since some moment (RAPL), and the value at which each counter wraps."""

    joules: Mapping[str, float]
    wraps_at_j: Mapping[str, float]

    def since(self, before: EnergyCounters) -> float | None:
        """Joules between two readings; None if no counter is in both."""
        spent = None
        for name in self.joules.keys() & before.joules.keys():
            difference = self.joules[name] - before.joules[name]
            if difference < 0:  # the counter wrapped once
                difference += self.wraps_at_j[name]
            spent = (spent or 0.0) + difference
        return spent


def energy(*, root: Path = ROOT) -> EnergyCounters:
    """The package counters at this moment; empty if there are none or they are not readable.

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
