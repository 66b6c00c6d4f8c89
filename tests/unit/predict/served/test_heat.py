"""Long load in hot surroundings: a thermal resistance by pencil, its laws, and what estimates and searches state."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import chipwise
from chipwise.design.run.spec import run_spec
from chipwise.design.targets.sheet import sheet_target
from chipwise.errors import SpecError, Unsupported
from chipwise.hardware import datasheet
from chipwise.hardware.device import Thermal
from chipwise.hardware.facts import Temperature
from chipwise.model.space.search_space import SearchSpace
from chipwise.predict.cost.model import Predicted
from chipwise.predict.served import heat
from chipwise.predict.served.heat import COOLING, Cooling, slowdown


def exact(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Cooling without doubt: 90 °C, the full power at 30 °C."""
    monkeypatch.setitem(COOLING, kind, Cooling(limit_c=(90.0, 1e-9), rated_c=(30.0, 1e-9), power=(1.0, 1e-9)))


def test_the_power_of_a_thermal_resistance(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 °C of difference carry off 450 W, so 15 °C carry off 112.5 W: a load of 450 W has to fall to a quarter.

    The clock falls to (1/4)^(1/a): 1/4 at a = 1, 1/2 at a = 2, 0.63 at a = 3.
    """
    exact(monkeypatch, "card")
    monkeypatch.setattr(heat, "TOLERANCE_C", 1e-9)
    card = replace(datasheet.load("rtx-4090"), max_temperature=None)
    found = slowdown(card, 75.0, Predicted.around(450.0, 1e-9))
    assert found.value == pytest.approx(2.0, rel=0.02)
    assert (found.low, found.high) == pytest.approx((4 ** (1 / 2.9), 4 ** (1 / 1.1)), rel=0.02)
    cool = slowdown(card, 30.0, Predicted.around(450.0, 1e-9))
    assert (cool.low, cool.value, cool.high) == pytest.approx((1.0, 1.0, 1.0))
    idle = slowdown(card, 75.0, Predicted.around(100.0, 1e-9))
    assert (idle.value, idle.high) == pytest.approx((1.0, 1.0))  # 100 W fit into 112.5 W


@pytest.mark.parametrize("name", ["rtx-4090", "raspberry-pi-5", "apple-m4", "snapdragon-8-elite", "h100-sxm"])
def test_hotter_surroundings_and_more_power_never_make_a_chip_faster(name: str) -> None:
    sheet = datasheet.load(name)
    times = [slowdown(sheet, ambient) for ambient in (-10, 25, 35, 45, 50)]
    for cool, hot in itertools.pairwise(times):
        assert 1 <= cool.low <= hot.low
        assert cool.value <= hot.value
        assert cool.high <= hot.high
    little, much = (slowdown(sheet, 45, Predicted.around(share * heat.limit_w(sheet), 0.2)) for share in (0.3, 1.0))
    assert little.value <= much.value
    assert little.high <= much.high


def test_a_sheet_with_a_temperature_is_surer_than_one_without() -> None:
    sheet = datasheet.load("raspberry-pi-5")
    unknown = slowdown(replace(sheet, max_temperature=None), 70)
    known = slowdown(sheet, 70)
    assert known.high / known.low <= unknown.high / unknown.low
    assert slowdown(replace(sheet, max_temperature=Temperature(value="99 C", source="toy")), 70).value < known.value


def test_estimates_state_times_under_long_load_and_their_facts() -> None:
    asked: dict[str, Any] = {"device": "raspberry-pi-5", "prompt": 64, "new": 32}
    cold, hot = (chipwise.estimate("Qwen/Qwen3-0.6B", **asked, **more) for more in ({}, {"ambient": "45 C"}))
    assert "tpot_sustained" not in cold.metrics
    assert hot.metrics["tpot_p50"] == cold.metrics["tpot_p50"]
    for name, median in heat.SUSTAINED.items():
        assert hot.metrics[name].value >= hot.metrics[median].value
        assert hot.metrics[name].low >= hot.metrics[median].low
    assert any("45 °C" in note and "its data sheet states a limit of 85 °C" in note for note in hot.notes)
    rows = chipwise.estimate("Qwen/Qwen3-0.6B", devices=["l4", "raspberry-pi-5"], ambient=45, prompt=64, new=32)
    there = next(row.estimate for row in rows if row.device == "raspberry-pi-5")
    assert there.metrics["tpot_sustained"] == hot.metrics["tpot_sustained"]
    bare = chipwise.estimate("Qwen/Qwen3-0.6B", device="snapdragon-8-elite", ambient=45).notes
    assert any("no temperatures, so typical cooling of a phone is assumed" in note for note in bare)


RUN: dict[str, Any] = {
    "name": "toy", "workload": {"prompt_tokens": 64, "new_tokens": 32},
    "target": {"device": "raspberry-pi-5", "ambient": "45 C"}, "constraints": {"tpot_sustained": "<= 1 s"},
    "space": {
        "d_model": [64], "depth": [2], "vocab_size": [512], "head_size": [32], "weights": ["fp32", "int8"],
        "layer": {"heads": [2], "kv_heads": [2], "ffn": ["swiglu"], "ffn_width": [64, 256]}, "max_tokens": 128,
    },
    "data": {"source": "files", "paths": ["x.txt"]},
}  # fmt: skip


def test_a_search_and_an_estimate_state_the_same_time_under_long_load() -> None:
    spec = run_spec(RUN, file="toy.yaml")
    space = SearchSpace(spec.space)
    target = sheet_target(spec, space)
    row = space.sample(1, np.random.default_rng(0))
    asked = target._pricer.request(space.design(row[0]))
    sizes = {"runtime": asked.deployment.runtime, "weights": asked.deployment.weights, "prompt": 64, "new": 32}
    found = chipwise.estimate(asked.model, device=target.device, ambient="45 C", **sizes).metrics["tpot_sustained"]
    searched = target.predict(space.design(row[0]))["tpot_sustained"]
    assert searched == pytest.approx([found.value, found.low, found.high])
    assert target.metrics(row)["tpot_sustained"][0] == pytest.approx(found.value, rel=0.1)


def test_a_measured_machine_slows_down_by_its_own_rise_of_temperature() -> None:
    """It kept 0.8 of its speed at 80 °C in a room of 20 °C; at 45 °C 35 of 60 °C remain, so 0.8 sqrt(35/60)."""
    thermal = Thermal(
        sustained_share=0.8, time_constant_s=60, throttle_s=40, observed_s=600, temperature_c=80, ambient_c=20
    )
    assert thermal.share_at(45) == pytest.approx(0.8 * (35 / 60) ** 0.5)
    assert thermal.share_at(20) == pytest.approx(0.8)
    cool = replace(thermal, sustained_share=1.0, throttle_s=None, temperature_c=60)
    assert cool.share_at(45) == 1.0  # 85 °C by the same rise of 40 °C, below the limit
    assert cool.share_at(60) == pytest.approx((30 / 40) ** 0.5)
    with pytest.raises(Unsupported, match="cannot run for long at 85 °C ambient"):
        thermal.share_at(85)
    with pytest.raises(Unsupported, match="--sustained 10m --ambient 25C"):
        replace(thermal, ambient_c=None).share_at(45)


@pytest.mark.parametrize(
    ("ambient", "message"),
    [
        ("45 K", "unknown unit 'K'"), ("hot", "ambient: 'hot' is not a quantity"), (400, "from -40 to 85 °C, not 400"),
        ("-99 C", "from -40 to 85 °C"),
    ],
)  # fmt: skip
def test_no_temperature_is_refused_in_one_line(ambient: Any, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        chipwise.estimate("gpt2", device="l4", ambient=ambient)
    with pytest.raises(SpecError, match=re.escape(message)):
        run_spec({**RUN, "target": {"device": "raspberry-pi-5", "ambient": ambient}}, file="toy.yaml")


def test_surroundings_as_hot_as_the_limit_are_refused() -> None:
    with pytest.raises(Unsupported, match="snapdragon-8-elite must stay below 55 °C"):
        chipwise.estimate("gpt2", device="snapdragon-8-elite", ambient=60)
    with pytest.raises(SpecError, match=r"tpot_sustained: .*cannot run for long at 85 °C"):
        run_spec({**RUN, "target": {"device": "raspberry-pi-5", "ambient": 85}}, file="toy.yaml")
    with pytest.raises(SpecError, match="ambient: only applies to a sustained measurement"):
        chipwise.measure("gpt2", ambient_c=25.0)
