"""Neighbours and networks: percentiles of mixtures and of sums that a pencil gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from toy_engine import toy_load, toy_table

import chipwise
from chipwise.errors import InputError, SpecError
from chipwise.predict.load.disturbances import Disturbances
from chipwise.predict.load.engine import Served, replay
from chipwise.predict.load.outcome import metrics_of
from chipwise.predict.load.policy import Policy


def replayed(factor: float) -> Served:
    """200 requests, each alone, with steps of 10 ms times the factor: prompts take 10 ms, 9 gaps 10 ms each."""
    load = toy_load([float(i) for i in range(200)], prompt=100, new=10)
    policy = Policy(most_tokens=4096, most_sequences=8)
    return replay(load, toy_table(step_s=0.010), policy, cache_tokens=1e6, slow=(factor, factor))


def metrics(**fields: Any) -> dict[str, float]:
    by = Disturbances(**fields)
    return metrics_of(*by.replays(replayed), by=by)


def test_a_share_of_slow_periods_is_a_mixture() -> None:
    alone, rare, often = (
        metrics(),
        metrics(slow_share=0.005, slow_factor=1.5),
        metrics(slow_share=0.05, slow_factor=1.5),
    )
    assert alone["ttft_p99"] == pytest.approx(0.010)
    assert (rare["ttft_p99"], often["ttft_p50"]) == pytest.approx((0.010, 0.010))  # slow requests are beyond the P99
    assert (often["ttft_p99"], often["tpot_p99"], often["itl_p99"]) == pytest.approx((0.015, 0.015, 0.015))
    assert often["e2e_p99"] == pytest.approx(10 * 0.015)
    assert often["ttft_mean"] == pytest.approx(0.95 * 0.010 + 0.05 * 0.015)


def test_a_constant_time_plus_the_network_has_the_delays_percentiles() -> None:
    found = metrics(network_p50_s=0.020, network_p99_s=0.120)
    assert found["ttft_p50"] == pytest.approx(0.010 + 0.020, rel=1e-3)
    assert found["ttft_p99"] == pytest.approx(0.010 + 0.120, rel=2e-3)
    assert found["e2e_p99"] == pytest.approx(0.100 + 0.120, rel=2e-3)
    assert (found["tpot_p99"], found["itl_p99"], found["queue_p99"]) == pytest.approx((0.010, 0.010, 0.0), abs=1e-9)
    sigma = np.log(6) / 2.3263
    assert found["ttft_mean"] == pytest.approx(0.010 + 0.020 * np.exp(sigma**2 / 2), rel=2e-3)


def test_a_constant_delay_shifts_every_percentile() -> None:
    found = metrics(network_p50_s=0.030)
    assert (found["ttft_p50"], found["ttft_p99"]) == pytest.approx((0.040, 0.040))


def test_neighbours_and_network_together_are_a_convolution() -> None:
    """Two independent values 10 ms (3 of 4) and 100 ms, and a delay: P(time <= t) is the weighted sum."""
    found = metrics(slow_share=0.25, slow_factor=10, network_p50_s=0.020, network_p99_s=0.020)
    assert (found["ttft_p50"], found["ttft_p90"], found["ttft_mean"]) == pytest.approx((0.030, 0.120, 0.0525))


def test_throughput_falls_by_the_mean_speed() -> None:
    assert Disturbances(slow_share=0.4, slow_factor=2).speed == pytest.approx(0.6 + 0.4 / 2)


def test_a_plan_and_a_simulation_state_the_same() -> None:
    asked: dict[str, Any] = {"prompt": 300, "new": 60, "rate": 4, "requests": 150}
    asked["disturbances"] = {"slow_share": "10 %", "slow_factor": 2, "network_p50": "30 ms", "network_p99": 0.2}
    option = chipwise.plan("Qwen/Qwen3-0.6B", devices=["l4"], tp=[1], weights=["bf16"], **asked).best
    found = chipwise.simulate("Qwen/Qwen3-0.6B", device="l4", weights="bf16", seeds=1, **asked)
    plain = chipwise.simulate("Qwen/Qwen3-0.6B", device="l4", seeds=1, prompt=300, new=60, rate=4, requests=150)
    for name in ("ttft_p50", "ttft_p99", "itl_p99", "e2e_p99"):
        assert option.times[name].value == pytest.approx(found.times[name].value, rel=1e-6), name
    assert option.saturation_per_s == pytest.approx(found.saturation_per_s)
    assert found.saturation_per_s == pytest.approx(0.95 * plain.saturation_per_s)
    assert found.times["ttft_p99"].value > 0.2 > plain.times["ttft_p99"].value
    assert found.times["tpot_p99"].value > 1.5 * plain.times["tpot_p99"].value
    assert "steps 2 times as long in 10 % of the time, network delay P50 30 ms and P99 200 ms" in found.load


def test_limits_of_a_plan_hold_with_the_network() -> None:
    asked: dict[str, Any] = {"devices": ["l4"], "tp": [1], "rate": 2, "prompt": 300, "new": 60, "requests": 60}
    slow = {"network_p50": "0.1 s", "network_p99": "0.5 s"}
    with pytest.raises(chipwise.ChipwiseError, match="ttft_p99"):
        chipwise.plan("Qwen/Qwen3-0.6B", limits={"ttft_p99": "0.4 s"}, disturbances=slow, **asked)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"slow_share": "5 %"}, "slow_share: needs slow_factor"),
        ({"slow_factor": 1.5}, "slow_factor: needs slow_share"),
        ({"slow_share": 1.0, "slow_factor": 2.0}, "slow_share: must be from 0 to below 100 %"),
        ({"slow_share": "5", "slow_factor": 1.5}, "slow_share: must be from 0 to below 100 %"),
        ({"slow_share": "a few", "slow_factor": 1.5}, "slow_share: .*is not a quantity"),
        ({"slow_share": "5 %", "slow_factor": 0.5}, "slow_factor: must be from 1 to 100"),
        ({"network_p50": "20"}, "network_p50: .*no unit"),
        ({"network_p50": "-1 ms"}, "network_p50.*: must be from 0"),
        ({"slow": "5 %"}, "disturbances.slow: unknown field; did you mean"),
        ({"network_p99": "20 ms"}, "network_p99: needs network_p50"),
        ({"network_p50": "20 ms", "network_p99": "10 ms"}, "network_p99: must be at least the P50 of 0.02 s"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(fields: dict[str, Any], message: str) -> None:
    for ask in (chipwise.simulate, chipwise.plan):
        with pytest.raises((SpecError, InputError), match=message) as error:
            ask("Qwen/Qwen3-0.6B", rate=1, disturbances=fields)
        assert "\n" not in str(error.value)
