"""Power in kits: which source a device offers, mean watts of a window, and the joules that come back with results."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from chipwise.deploy.kits import kit_script
from chipwise.deploy.measure.harness import join, measurement_of
from chipwise.design.phases.measuring import measurement_notes
from chipwise.model.ops.workload import Workload
from chipwise.predict.cost.spending import Rates

REQUEST = {"batch": 1, "new_tokens": 11}


def written(root: Path, files: dict[str, object]) -> str:
    for name, value in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{value}\n")
    return str(root)


def battery(**changes: object) -> dict[str, object]:
    found = {"type": "Battery", "status": "Discharging", "current_now": -1_500_000, "voltage_now": 4_000_000} | changes
    return {f"sys/class/power_supply/battery/{name}": value for name, value in found.items()}


RAPL = {
    "sys/class/powercap/intel-rapl:0/energy_uj": 5_000_000,
    "sys/class/powercap/intel-rapl:1/energy_uj": 7_000_000,
    "sys/class/powercap/intel-rapl:0:0/energy_uj": 4_000_000,  # a part of package 0
    "sys/class/powercap/intel-rapl-mmio:0/energy_uj": 5_000_000,  # package 0 by another way
}


def test_packages_are_counted_once(tmp_path: Path) -> None:
    """5 J and 7 J: parts of a package, and the same package by memory-mapped registers, would count twice."""
    meter, _ = kit_script.find_meter(written(tmp_path, RAPL))
    assert (meter.name, meter.counts) == ("processor packages (RAPL)", True)
    assert meter.read() == pytest.approx(12.0)


def test_a_jetsons_rails_are_added_unless_one_feeds_all(tmp_path: Path) -> None:
    """19 V x 0.5 A + 5 V x 0.4 A = 11.5 W; a rail called VDD_IN is the whole module and would count all twice."""
    chip = "sys/class/hwmon/hwmon3/"
    rails = {f"{chip}name": "ina3221", f"{chip}in1_input": 19_000, f"{chip}curr1_input": 500}
    rails |= {f"{chip}in1_label": "VDD_GPU_SOC", f"{chip}in2_label": "VIN_SYS_5V0"}
    rails |= {f"{chip}in2_input": 5_000, f"{chip}curr2_input": 400, f"{chip}in3_input": 5_000}
    meter, _ = kit_script.find_meter(written(tmp_path, {**RAPL, **rails}))
    assert meter.name == "VDD_GPU_SOC, VIN_SYS_5V0 (board sensors)"
    assert meter.read() == pytest.approx(11.5)
    written(tmp_path, {f"{chip}in1_label": "VDD_IN"})
    meter, _ = kit_script.find_meter(str(tmp_path))
    assert (meter.name, meter.read()) == ("VDD_IN (board sensors)", pytest.approx(9.5))


def test_a_phone_tells_its_power_by_its_battery_when_unplugged(tmp_path: Path) -> None:
    """1.5 A at 4 V are 6 W, whatever sign the driver gives a current that flows out."""
    meter, _ = kit_script.find_meter(written(tmp_path, battery()))
    assert "battery" in meter.name
    assert meter.read() == pytest.approx(6.0)
    written(tmp_path, battery(power_now=6_500_000))
    assert kit_script.find_meter(str(tmp_path))[0].read() == pytest.approx(6.5)


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "no counter, sensor or battery"),
        (battery(status="Charging"), "plugged in.*unplug it"),
        (battery(current_now=1500), "too little for a working device"),  # milliamperes
        (
            {"sys/class/power_supply/battery/type": "Battery", "sys/class/power_supply/battery/status": "Discharging"},
            "may not read current and voltage",
        ),
        ({"sys/class/powercap/intel-rapl:0/energy_uj": ""}, "only an administrator"),
    ],
)
def test_where_power_cannot_be_read_the_reason_is_said(tmp_path: Path, files: dict[str, object], why: str) -> None:
    meter, said = kit_script.find_meter(written(tmp_path, files))
    assert meter is None
    assert re.search(why, said)


def test_mean_watts_of_a_window() -> None:
    """Watts are averaged inside the window. A counter: 2 J a second; between 3 and 4 it wrapped, which is left out."""
    watts = [(float(t), 1.0 if t < 2 else 3.0) for t in range(8)]
    assert kit_script.mean_w(watts, 2.0, 7.0, counts=False) == 3.0
    assert kit_script.mean_w(watts, 0.0, 3.0, counts=False) == 2.0
    assert kit_script.mean_w(watts, 5.5, 6.5, counts=False) is None  # one reading tells nothing
    joules = [(0.0, 10.0), (1.0, 12.0), (2.0, 14.0), (3.0, 16.0), (4.0, 1.0), (5.0, 3.0)]
    assert kit_script.mean_w(joules, 0.0, 5.0, counts=True) == pytest.approx(2.0)


def reply(**changes: Any) -> dict[str, Any]:
    samples = {"ttft_s": [0.5] * 9, "tpot_s": [0.1] * 9, "ttft_cpu_s": [], "tpot_cpu_s": [], "reference_s": {}}
    found = {"cpu_s": 1.0, "wall_s": 4.0, "peak_memory_bytes": 10**6, "energy_j": None, "readings": {}}
    found |= {"facts": {"design": "d", "name": "m"}, "machine": "board", "runtime_version": "1"}
    nothing = ("load_before", "load_after", "clock_hz_before", "clock_hz_after", "temperature_c")
    return {**samples, **found, **dict.fromkeys(nothing), **changes}


def measured(*parts: dict[str, Any]):
    return join(
        [
            measurement_of(
                one,
                model=Path("m.gguf"),
                workload=Workload(prompt_tokens=8, new_tokens=11),
                runtime="llama.cpp",
                threads=2,
            )
            for one in parts
        ]
    )


def settled(meter: kit_script.Meter | None, looks: list[tuple[float, float]], **windows: list[float]) -> dict[str, Any]:
    watch = kit_script._Watch(meter)
    watch._looks = looks
    found = reply(windows=windows)
    watch.settle(found, REQUEST)
    return found


def test_prompts_and_steps_timed_apart_count_as_in_a_request() -> None:
    """A request: 0.5 s of its prompt at 9 W, ten steps of 0.1 s at 3 W: (4.5 + 3) J in 1.5 s are 5 W, over 4 s 20 J."""
    looks = [(t / 2, 9.0 if t < 8 else 3.0) for t in range(16)]
    meter = kit_script.Meter("test", lambda: None)
    found = settled(meter, looks, ttft_s=[0.0, 3.6], tpot_s=[3.9, 8.0])
    assert found["energy_j"] == pytest.approx(20.0)
    assert found["energy_from"] == "test"
    notes = measurement_notes(measured(found), Rates(), final=True)["measured"]
    assert notes["power"] == pytest.approx(5.0)
    assert notes["joules_per_token"] == pytest.approx(7.5 / 11)
    unmetered = settled(None, [], request=[0.0, 9.0])
    assert unmetered["energy_j"] is None
    assert "windows" not in unmetered


def test_rounds_without_a_meter_make_no_power() -> None:
    """Joules of one round over the seconds of two would be half the watts."""
    notes = measurement_notes(measured(reply(energy_j=20.0), reply()), Rates(), final=True)["measured"]
    assert "power" not in notes


def test_the_meter_is_read_while_the_other_process_works() -> None:
    meter = kit_script.Meter("test", lambda: 2.0)
    started = time.monotonic()
    with kit_script._Watch(meter) as watch:
        time.sleep(6 * kit_script.LOOK_S)
    ended = time.monotonic()
    assert kit_script.mean_w(watch._looks, started, ended, counts=False) == 2.0
