"""A calibrated machine's cost model before and after measurements, and limits on sustained speed, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from chipwise.core.files import build
from chipwise.design.limits import parse_constraints
from chipwise.design.prices.price_table import PriceTable, ProfilePricer
from chipwise.design.run.spec import RunSpec
from chipwise.design.targets.cost_model import CostModel, NotedMeasurement, _check_name
from chipwise.design.targets.sustained import cold, with_cold_limits
from chipwise.errors import Unsupported
from chipwise.hardware.device import Thermal
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.space.search_space import SearchSpace
from support.machines import round_machine

WORKLOAD = Workload(prompt_tokens=8, new_tokens=8)
SPEC = build(
    RunSpec,
    {
        "name": "toy",
        "workload": {"prompt_tokens": 8, "new_tokens": 8},
        "space": {
            "d_model": [32, 64, 96, 128],
            "depth": [1, 2, 3],
            "vocab_size": [512],
            "layer": {"heads": [1, 2], "kv_heads": [1], "ffn": ["relu", "swiglu"], "ffn_width": [64, 128]},
            "max_tokens": 64,
        },
        "data": {},
    },
)
SPACE = SearchSpace(SPEC.space)


def test_a_machine_that_keeps_half_its_speed_halves_sustained_limits() -> None:
    thermal = Thermal(sustained_share=0.5, time_constant_s=60.0, throttle_s=40.0, observed_s=600.0)
    asked = {"tpot_sustained": [{"limit": "<= 4 ms", "penalty": "10 %"}, "<= 6 ms"], "tpot_p50": ["<= 5 ms", "<= 7 ms"]}
    found = parse_constraints(cold(asked, thermal))
    assert sorted((item.limit, item.penalty or 0.0) for item in found) == [
        (pytest.approx(2e-3), 0.1),
        (pytest.approx(3e-3), 0.0),
        (5e-3, 0.0),
        (7e-3, 0.0),
    ]
    spec, machine = replace(SPEC, constraints={"tpot_sustained": "<= 4 ms"}), round_machine()
    assert with_cold_limits(SPEC, machine) is SPEC
    with pytest.raises(Unsupported, match=r"chipwise measure MODEL --sustained 10m"):
        with_cold_limits(spec, replace(machine, thermal=None))
    (limit,) = with_cold_limits(spec, replace(machine, thermal=thermal)).limits
    assert (limit.metric, limit.limit) == ("tpot_p50", pytest.approx(2e-3))


def test_a_cost_model_before_any_measurement_is_the_machines() -> None:
    machine = round_machine()
    model, table = CostModel(SPACE, WORKLOAD, machine), PriceTable(SPACE, WORKLOAD, ProfilePricer(machine))
    rows = SPACE.sample(5, np.random.default_rng(0))
    found, priced = model.metrics(rows), table(rows)
    assert found["tpot_p50"] == pytest.approx(priced.tpot_s)
    assert found["tpot_p99"] == pytest.approx(2 * priced.tpot_s + 1e-6)
    assert found["ttft_p99"] == pytest.approx(1.5 * priced.ttft_s)
    assert found["peak_memory"] == pytest.approx(priced.peak_memory_bytes)
    assert found["parameters"] == pytest.approx(priced.parameters)
    design = SPACE.design(rows[0])
    promise = model.predict(design)
    for metric, bounds in promise.items():
        assert bounds[0] == pytest.approx(found[metric][0]), metric
    for metric in ("tpot_p50", "ttft_p99", "peak_memory"):
        value, low, high = promise[metric]
        assert math.log(high / value) == pytest.approx(1.645 * 0.1, rel=1e-3)
        assert low * high == pytest.approx(value**2)
    assert promise["parameters"] == [design.arch.parameters()] * 3
    assert 0 <= model.novelty(design) <= 1


def test_measurements_pull_later_predictions_towards_them() -> None:
    model = CostModel(SPACE, WORKLOAD, round_machine())
    rows = np.unique(SPACE.sample(40, np.random.default_rng(0)), axis=0)[:12]
    before = model.metrics(rows)
    measured = [
        (SPACE.design(row), {metric: 1.3 * float(before[metric][i]) for metric in before if metric != "parameters"})
        for i, row in enumerate(rows[:8])
    ]
    model.learn(measured)
    after = model.metrics(rows)
    for metric in ("tpot_p50", "ttft_p50", "tpot_p99"):
        ratio = after[metric] / before[metric]
        assert (ratio > 1.15).all(), metric
        assert (ratio < 1.31).all(), metric
    assert model.novelty(SPACE.design(rows[0])) < 1
    model.learn([])
    assert model.metrics(rows)["tpot_p50"] == pytest.approx(before["tpot_p50"])
    partly = [(design, {"tpot_p50": 1.0}) for design, _ in measured]
    model.learn(partly)  # without all percentiles nothing is learnt
    assert model.metrics(rows)["tpot_p50"] == pytest.approx(before["tpot_p50"])


def test_names_of_checks_and_percentiles() -> None:
    names = ("tpot_p50", "tpot_p99", "ttft_p50", "ttft_p99", "peak_memory")
    assert [_check_name(name) for name in names] == ["decode", "decode_p99", "prefill", "prefill_p99", "memory"]
    design = SPACE.design(SPACE.sample(1, np.random.default_rng(0))[0])
    noted = NotedMeasurement(design, WORKLOAD, {"ttft_p50": 1.0, "ttft_p99": 2.0, "tpot_p50": 3.0, "tpot_p99": 4.0})
    assert [noted.seconds(phase, share) for phase in (Phase.PREFILL, Phase.DECODE) for share in (0.5, 0.99)] == [
        1,
        2,
        3,
        4,
    ]
    assert noted.peak_memory_bytes is None
    assert replace(noted, values={"peak_memory": 5.0}).peak_memory_bytes == 5.0
