"""Limits that may be broken at a price: what is paid by pencil, laws, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.design.limits import broken, parse_constraints, soft_limit_on_latency, total_penalty
from chipwise.errors import SpecError

SOFT = {"tpot_p99": {"limit": "<= 200 us", "penalty": "10 %"}}
seconds = st.floats(1e-6, 1e-2)


def test_half_past_the_limit_costs_half_the_penalty() -> None:
    limits = parse_constraints(SOFT)
    assert total_penalty(limits, {"tpot_p99": 300e-6}) == pytest.approx(0.05)  # 50 % past, 10 % for each 100 %
    assert total_penalty(limits, {"tpot_p99": 400e-6}) == pytest.approx(0.10)
    assert total_penalty(limits, {"tpot_p99": 150e-6}) == 0.0
    assert total_penalty(limits, {}) == 0.0
    assert not broken(limits, {"tpot_p99": 1.0})


def test_soft_limits_add_up_and_a_number_is_a_share() -> None:
    limits = parse_constraints(SOFT | {"peak_memory": {"limit": "<= 100 MB", "penalty": 0.2}, "parameters": "<= 1M"})
    values = {"tpot_p99": 220e-6, "peak_memory": 150e6, "parameters": 2e6}
    assert total_penalty(limits, values) == pytest.approx(0.1 * 0.1 + 0.2 * 0.5)
    assert [item.metric for item in broken(limits, values)] == ["parameters"]
    assert [item.text for item in limits] == ["<= 200 us (soft, 10 %)", "<= 100 MB (soft, 20 %)", "<= 1M"]


def test_a_soft_floor_is_paid_below_it() -> None:
    (limit,) = parse_constraints({"parameters": {"limit": ">= 2M", "penalty": 1}})
    assert total_penalty([limit], {"parameters": 1e6}) == pytest.approx(0.5)
    assert total_penalty([limit], {"parameters": 3e6}) == 0.0


def test_half_the_throughput_costs_half_the_penalty() -> None:
    (limit,) = parse_constraints({"throughput": {"limit": ">= 4 ktokens/s", "penalty": "10 %"}})
    assert total_penalty([limit], {"throughput": 2_000.0}) == pytest.approx(0.05)
    assert total_penalty([limit], {"throughput": 5_000.0}) == 0.0
    assert soft_limit_on_latency([limit])


def test_a_soft_limit_below_a_hard_one_makes_a_band() -> None:
    limits = parse_constraints({"tpot_p99": [SOFT["tpot_p99"], "<= 400 us"]})
    assert not broken(limits, {"tpot_p99": 300e-6})
    assert total_penalty(limits, {"tpot_p99": 300e-6}) == pytest.approx(0.05)
    assert broken(limits, {"tpot_p99": 500e-6})


def test_soft_limits_on_what_follows_the_pace_sell_it() -> None:
    assert soft_limit_on_latency(parse_constraints(SOFT))
    assert not soft_limit_on_latency(
        parse_constraints({"peak_memory": {"limit": "<= 1 GB", "penalty": 1}, "tpot_p50": "<= 1 s"})
    )


@given(fast=seconds, slow=seconds, penalty=st.floats(1e-3, 10))
def test_slower_never_pays_less_and_a_higher_penalty_never_costs_less(fast, slow, penalty) -> None:
    fast, slow = sorted((fast, slow))
    cheap, dear = (
        parse_constraints({"tpot_p50": {"limit": "<= 100 us", "penalty": share}}) for share in (penalty, 2 * penalty)
    )
    assert 0 <= total_penalty(cheap, {"tpot_p50": fast}) <= total_penalty(cheap, {"tpot_p50": slow})
    assert total_penalty(dear, {"tpot_p50": slow}) == pytest.approx(2 * total_penalty(cheap, {"tpot_p50": slow}))


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"tpot_p50": {"limit": "<= 1 ms"}}, "constraints.tpot_p50: a soft limit needs both `limit` and `penalty`"),
        ({"tpot_p50": {"penalty": 0.1}}, "a soft limit needs both `limit` and `penalty`"),
        ({"tpot_p50": {"limit": "<= 1 ms", "penality": 1}}, "unknown field 'penality'"),
        ({"tpot_p50": {"limit": "<= 1 ms", "penalty": -0.1}}, "penalty: must be above zero, not -0.1"),
        ({"tpot_p50": {"limit": "<= 1 ms", "penalty": 0}}, "a limit without a penalty has no effect"),
        ({"tpot_p50": {"limit": "<= 1 ms", "penalty": "much"}}, "'much' is not a share"),
        ({"tpot_p50": {"limit": "<= 1 ms", "penalty": "3 ms"}}, "'3 ms' is not a share"),
        ({"tpot_p50": {"limit": "1 ms", "penalty": 1}}, "tpot_p50.limit: '1 ms' is not a limit"),
        ({"bits_per_byte": {"limit": "<= 1.2", "penalty": 1}}, "so a limit on it must be hard"),
        ({"accuracy@mine": {"limit": ">= 85 %", "penalty": 1}}, "only for the finalists, so their limits must be hard"),
        ({"tpot_p50": [{"limit": "<= 2 ms", "penalty": 1}, "<= 1 ms"]}, "the hard limit '<= 1 ms' is at least as"),
    ],
)
def test_what_makes_no_sense_is_refused(given_, said) -> None:
    with pytest.raises(SpecError) as raised:
        parse_constraints(given_, tasks=["mine"])
    assert said in str(raised.value)
