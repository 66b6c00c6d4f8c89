"""Limits on sustained speed, restated by hand."""

from __future__ import annotations

import pytest

from chipwise.design.limits import parse_constraints
from chipwise.design.targets.sustained import cold
from chipwise.hardware.device import Thermal

THERMAL = Thermal(sustained_share=2 / 3, time_constant_s=60.0, throttle_s=41.6, observed_s=600.0)


def test_two_thirds_of_the_speed_make_three_milliseconds_two() -> None:
    (limit,) = parse_constraints(cold({"tpot_sustained": "<= 3 ms"}, THERMAL))
    assert (limit.metric, limit.op) == ("tpot_p50", "<=")
    assert limit.limit == pytest.approx(2e-3)


def test_other_limits_stay_and_the_tighter_counts() -> None:
    limits = parse_constraints(
        cold({"tpot_sustained": "<= 3 ms", "tpot_p50": "<= 1 ms", "ttft_p99": "<= 1 s"}, THERMAL)
    )
    assert sorted((limit.metric, round(limit.limit, 6)) for limit in limits) == [
        ("tpot_p50", 0.001),
        ("tpot_p50", 0.002),
        ("ttft_p99", 1.0),
    ]
