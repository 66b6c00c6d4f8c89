"""Sensors against a tree of files as Linux lays them out."""

from __future__ import annotations

from pathlib import Path

import pytest

from chipwise.deploy.measure.sensors import EnergyCounters, energy, frequency_hz, temperature_c


def put(root: Path, path: str, text: str) -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def test_a_machine_that_tells_nothing(tmp_path) -> None:
    assert frequency_hz([0], root=tmp_path) is None
    assert temperature_c(root=tmp_path) is None
    counters = energy(root=tmp_path)
    assert counters.since(counters) is None


def test_clock_and_temperature(tmp_path) -> None:
    for cpu, khz in ((0, 3_000_000), (1, 2_000_000)):
        put(tmp_path, f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq", f"{khz}\n")
    for zone, milli in ((0, 45_000), (1, 61_500)):
        put(tmp_path, f"sys/class/thermal/thermal_zone{zone}/temp", f"{milli}\n")
    assert frequency_hz([0, 1], root=tmp_path) == 2.5e9
    assert temperature_c(root=tmp_path) == 61.5


def test_packages_count_and_their_parts_do_not(tmp_path) -> None:
    for zone, micro in (("intel-rapl:0", 5_000_000), ("intel-rapl:1", 7_000_000), ("intel-rapl:0:0", 4_000_000)):
        put(tmp_path, f"sys/class/powercap/{zone}/energy_uj", str(micro))
        put(tmp_path, f"sys/class/powercap/{zone}/max_energy_range_uj", "10000000")
    before = energy(root=tmp_path)
    put(tmp_path, "sys/class/powercap/intel-rapl:0/energy_uj", "6500000")  # 1.5 J
    put(tmp_path, "sys/class/powercap/intel-rapl:1/energy_uj", "1000000")  # 3 J to its end at 10 J, 1 J after
    assert energy(root=tmp_path).since(before) == pytest.approx(1.5 + 4.0)


def test_a_counter_that_may_not_be_read_is_none(tmp_path) -> None:
    put(tmp_path, "sys/class/powercap/intel-rapl:0/energy_uj", "")
    put(tmp_path, "sys/class/powercap/intel-rapl:0/max_energy_range_uj", "10000000")
    assert energy(root=tmp_path) == EnergyCounters({}, {})
