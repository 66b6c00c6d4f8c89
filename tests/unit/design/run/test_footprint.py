"""What a search cost: its CPU seconds times the watts of a busy core, and the grams of a stated grid."""

import pytest

from chipwise.core.digest import plain
from chipwise.deploy.measure.sensors import EnergyCounters
from chipwise.design.run.changes import differences
from chipwise.design.run.footprint import PowerMeter, footprint
from chipwise.design.run.ledger import Ledger, power_of
from chipwise.design.run.spec import run_spec
from chipwise.errors import SpecError

FILE = {
    "name": "small",
    "workload": {"prompt_tokens": 8, "new_tokens": 8},
    "space": {
        "d_model": [64],
        "depth": [1],
        "vocab_size": [256],
        "layer": {"heads": [2], "kv_heads": [2], "ffn": ["gelu"], "ffn_width": [64]},
    },
    "data": {"source": "medical-definitions"},
}


def counters(joules: float) -> EnergyCounters:
    return EnergyCounters({"intel-rapl:0": joules}, {"intel-rapl:0": 1000.0})


def test_a_search_costs_its_share_of_the_packages_joules() -> None:
    """400 J while all processes took 50 CPU seconds are 8 W per busy core; the counter wraps at 1,000 J on the way."""
    readings = iter([(counters(900.0), 10.0), (counters(950.0), 20.0), (counters(300.0), 60.0)])
    meter = PowerMeter({}, read=lambda: next(readings))
    assert meter.settle() == {"joules": 50.0, "busy_s": 10.0}
    assert meter.settle() == {"joules": 400.0, "busy_s": 50.0}
    cost = footprint({"train": 20.0, "measure": 25.0}, cpu="any", measured=meter.held, carbon="360 g/kWh")
    assert cost is not None
    assert cost.watts_per_core == 8.0
    assert cost.energy_j == 360.0  # 45 s x 8 W, which is 1e-4 kWh
    assert cost.co2_g == pytest.approx(0.036)
    assert cost.sentence == (
        "The CPU time of the search cost 360 J at 8 W per busy core (measured: energy counters of the processor "
        "packages), and 36 mg of CO2 at 360 g/kWh (stated)."
    )


def test_without_a_counter_the_data_sheet_of_the_processor_counts() -> None:
    cost = footprint({"train": 64.0}, cpu="AMD EPYC 7763 64-Core Processor", measured={}, carbon=None)
    assert cost is not None
    assert cost.energy_j == pytest.approx(280.0)  # 280 W for 64 cores, 64 CPU seconds
    assert cost.source == "analytic: 280 W for 64 cores, from the data sheet of AMD EPYC 7763"
    assert "its CO2 is unknown: state the grid's" in cost.sentence
    hybrid = footprint({"train": 24.0}, cpu="13th Gen Intel(R) Core(TM) i9-13900K", measured={}, carbon=None)
    assert hybrid is not None
    assert hybrid.energy_j == pytest.approx(125.0)  # eight fast and sixteen small cores


@pytest.mark.parametrize("cpu", ["AMD EPYC", "unknown CPU"])
def test_an_unknown_processor_costs_an_unknown_number(cpu: str) -> None:
    cost = footprint({"train": 64.0}, cpu=cpu, measured={"joules": 0.0, "busy_s": 0.0}, carbon="350 g/kWh")
    assert cost is not None
    assert (cost.energy_j, cost.co2_g) == (None, None)
    assert cost.sentence == (
        "Energy and CO2 of the search are unknown: no energy counter is readable (/sys/class/powercap), and "
        f"{cpu} matches no data sheet."
    )
    assert footprint({}, cpu=cpu, measured={}, carbon=None) is None


def test_a_resumed_search_goes_on_with_what_its_meter_held(tmp_path, monkeypatch) -> None:
    readings = iter([(counters(0.0), 0.0), (counters(30.0), 10.0), (counters(500.0), 99.0), (counters(510.0), 109.0)])
    monkeypatch.setattr(
        "chipwise.design.run.ledger.PowerMeter", lambda before: PowerMeter(before, read=readings.__next__)
    )
    file = tmp_path / "spent.json"
    Ledger({}, file=file).save()
    assert power_of(file) == {"joules": 30.0, "busy_s": 10.0}
    Ledger({}, file=file).save()  # the 470 J between the sessions are not the search's
    assert power_of(file) == {"joules": 40.0, "busy_s": 20.0}


def test_a_grids_carbon_is_no_part_of_what_a_run_is() -> None:
    plainly = run_spec(FILE, file="run.yaml")
    stated = run_spec({**FILE, "carbon": "0.35 kg/kWh"}, file="run.yaml")
    assert plainly.identity == stated.identity
    assert "carbon" not in plain(plainly)
    assert list(differences(plainly, stated)) == []


@pytest.mark.parametrize(
    ("carbon", "message"),
    [
        ("350", "carbon: '350' has no unit; write a number and a unit, such as 350 g/kWh"),
        (350, "carbon: 350 has no unit; write a number and a unit, such as 350 g/kWh"),
        ("350 kg/kWh", "carbon: must be between 0 and 2,000 g/kWh, not '350 kg/kWh'"),
        ("-1 g/kWh", "carbon: must be between 0 and 2,000 g/kWh, not '-1 g/kWh'"),
        ("clean", "carbon: 'clean' is not a quantity; write a number and a unit, such as 350 g/kWh"),
    ],
)
def test_a_wrong_intensity_is_refused_in_one_line(carbon: object, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        run_spec({**FILE, "carbon": carbon}, file="run.yaml")
    assert str(caught.value) == f"run.yaml: {message}"
