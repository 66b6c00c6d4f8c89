"""Watts, joules and dollars by pencil from data sheets, and messages on missing facts."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.core.digest import plain
from chipwise.core.files import build
from chipwise.design.limits import POWER_METRICS
from chipwise.design.phases.measuring import measured_w
from chipwise.design.run.spec import RunSpec, TargetSpec, run_spec
from chipwise.design.targets.cost_model import CostModel
from chipwise.design.targets.sheet import SheetTarget
from chipwise.errors import SpecError
from chipwise.model.ops.workload import Workload
from chipwise.model.space.search_space import SearchSpace
from chipwise.predict.cost.spending import Rates, spent
from support.machines import round_machine

DATA = {
    "name": "toy",
    "workload": {"prompt_tokens": 8, "new_tokens": 11},
    "space": {
        "d_model": [32, 64],
        "depth": [1, 2],
        "vocab_size": [512],
        "layer": {"heads": [1, 2], "kv_heads": [1], "ffn": ["relu"], "ffn_width": [64, 128]},
        "weights": ["fp32", "int8"],
        "max_tokens": 64,
    },
    "data": {},
}
SPACE = SearchSpace(build(RunSpec, DATA).space)
ROWS = SPACE.sample(40, np.random.default_rng(0))
positive = st.floats(1e-6, 1e3)


def test_a_request_of_twelve_milliseconds_at_fifteen_watts() -> None:
    """2 ms of prompt, ten steps of 1 ms: 0.18 J for eleven tokens; at 3.6 USD/h, a tenth of a cent a second."""
    found = spent(2e-3, 1e-3, Workload(prompt_tokens=8, new_tokens=11), Rates(power_w=15.0, usd_per_s=3.6 / 3600))
    assert found == {
        "throughput": pytest.approx(11 / 0.012),
        "power": 15.0,
        "joules_per_token": pytest.approx(0.18 / 11),
        "usd_per_1k_tokens": pytest.approx(1000 * 0.001 * 0.012 / 11),
    }


def test_nothing_stated_says_nothing() -> None:
    workload = Workload(prompt_tokens=8, new_tokens=3, batch=2)
    assert spent(2e-3, 1e-3, workload, Rates()) == {"throughput": pytest.approx(2 * 3 / 4e-3)}


@given(ttft_s=positive, tpot_s=positive, watts=positive, batch=st.integers(1, 64))
def test_power_is_joules_a_token_times_tokens_a_second(ttft_s, tpot_s, watts, batch) -> None:
    found = spent(ttft_s, tpot_s, Workload(prompt_tokens=8, new_tokens=5, batch=batch), Rates(power_w=watts))
    tokens_per_s = 5 * batch / (ttft_s + 4 * tpot_s)
    assert found["power"] == watts == pytest.approx(found["joules_per_token"] * tokens_per_s)


def l4(**fields) -> SheetTarget:
    workload = Workload(prompt_tokens=8, new_tokens=11)
    served = TargetSpec(device=fields.pop("device", "l4"))
    return SheetTarget(SPACE, served.sheet, served=served, workload=workload, seed=0, energy=True)


def test_rows_and_whole_designs_draw_alike_between_the_floor_and_the_limit() -> None:
    target = l4()
    found = target.metrics(ROWS)
    assert ((found["power"] > 0.2 * 72) & (found["power"] <= 72)).all()
    for i in range(0, len(ROWS), 8):
        whole = {name: bounds[0] for name, bounds in target.predict(SPACE.design(ROWS[i])).items()}
        assert found.keys() == whole.keys()
        for name, values in found.items():  # energy of rows is fitted to whole estimates of a sample
            assert values[i] == pytest.approx(whole[name], rel=0.1 if name in POWER_METRICS else 1e-6), name
    request_s = found["ttft_p50"] + 10 * found["tpot_p50"]
    assert found["usd_per_1k_tokens"] == pytest.approx(1000 * 0.8048 / 3600 * request_s / 11)  # 0.8048 USD/h


def test_a_sheet_that_lacks_a_fact_of_power_still_tells_times() -> None:
    found = l4(device="apple-m1-pro").metrics(ROWS)
    assert {"ttft_p50", "tpot_p50"} <= found.keys()
    assert not {"power", "joules_per_token"} & found.keys()


def test_this_machine_is_charged_its_seconds_with_their_interval() -> None:
    workload = Workload(prompt_tokens=8, new_tokens=11)
    costing = CostModel(SPACE, workload, round_machine(), rates=Rates(power_w=20.0, usd_per_s=1e-4))
    known = costing.metrics(ROWS)
    request_s = known["ttft_p50"] + 10 * known["tpot_p50"]
    assert known["joules_per_token"] == pytest.approx(20.0 * request_s / 11)
    promise = costing.predict(SPACE.design(ROWS[0]))
    assert promise["power"] == [20.0, 20.0, 20.0]
    for end in range(3):
        seconds = promise["ttft_p50"][end] + 10 * promise["tpot_p50"][end]
        assert promise["usd_per_1k_tokens"][end] == pytest.approx(1000 * 1e-4 * seconds / 11)
        assert promise["throughput"][(0, 2, 1)[end]] == pytest.approx(11 / seconds)  # the longest time makes the fewest
    assert "power" not in CostModel(SPACE, workload, round_machine()).metrics(ROWS)


def test_counters_tell_mean_watts_of_all_rounds() -> None:
    one = SimpleNamespace(energy_j=6.0, environment={"wall_s": 3.0})
    both = SimpleNamespace(energy_j=9.0, environment={"rounds": [{"wall_s": 1.0}, {"wall_s": 2.0}]})
    assert (measured_w(one), measured_w(both)) == (2.0, 3.0)
    assert measured_w(SimpleNamespace(energy_j=None, environment={"wall_s": 3.0})) is None


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"constraints": {"power": "<= 15 W"}},
            "toy.yaml: constraints.power: the power of this machine under load must be stated",
        ),
        ({"constraints": {"joules_per_token": "<= 1 mJ"}}, "add it to target in this file, such as power: 15 W"),
        ({"constraints": {"usd_per_1k_tokens": "<= 0.01 USD"}}, "such as price: 0.10 USD/h"),
        (
            {"objectives": {"bits_per_byte": "minimize", "usd_per_1k_tokens": "minimize"}},
            "objectives.usd_per_1k_tokens: the price of this machine per hour must be stated",
        ),
        (
            {"targets": [{"device": "epyc-9755", "constraints": {"usd_per_1k_tokens": "<= 1 USD"}}]},
            "constraints.usd_per_1k_tokens: epyc-9755 lists no price: no published figure was found; "
            "if you know one, pass your own device file with price set",
        ),
        (
            {"targets": [{"device": "apple-m1-pro", "constraints": {"power": "<= 9 W"}}]},
            "pass your own device file with board_power set",
        ),
        (
            {
                "target": {"price": "1 USD/h"},
                "targets": ["epyc-9755"],
                "objectives": {"bits_per_byte": "minimize", "usd_per_1k_tokens": "minimize"},
            },
            "objectives.usd_per_1k_tokens: epyc-9755 lists no price",
        ),
        ({"target": {"power": "15 USD"}}, "target.power: unknown unit 'USD' for power"),
        ({"target": {"price": "-1 USD/h"}}, "target.price: must be positive"),
        ({"constraints": {"power": "<= 15"}, "target": {"power": "9 W"}}, "constraints.power: '15' has no unit"),
    ],
)
def test_what_nobody_states_is_one_error(more, said) -> None:
    with pytest.raises(SpecError) as raised:
        run_spec(DATA | more, file="toy.yaml")
    assert said in str(raised.value)


def test_stated_facts_make_limits_and_count_for_what_a_study_means() -> None:
    plainly = run_spec(DATA, file="toy.yaml")
    stated = run_spec(
        DATA | {"target": {"power": "9 W", "price": "3.6 USD/h"}, "constraints": {"power": "<= 15 W"}}, file="toy.yaml"
    )
    assert stated.target.rates == Rates(power_w=9.0, usd_per_s=pytest.approx(0.001))
    assert [item.show(item.limit) for item in stated.limits] == ["15 W"]
    assert stated.identity != plainly.identity
    assert plain(plainly.target)["power"] is None


def test_limits_of_several_devices_keep_their_device_and_penalty() -> None:
    spec = run_spec(
        DATA | {"targets": [{"device": "l4", "constraints": {"power": {"limit": "<= 30 W", "penalty": "5 %"}}}]},
        file="toy.yaml",
    )
    (limit,) = spec.limits_elsewhere
    assert (limit.metric, limit.limit, limit.penalty) == ("power@l4", 30.0, 0.05)
