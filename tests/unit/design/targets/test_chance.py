"""How likely a limit holds: the normal distribution behind an interval, by pencil."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.core.statistics import Z90
from chipwise.design.limits import parse_constraints
from chipwise.design.targets.chance import chance, holds, kept, tightened

(AT_MOST,) = parse_constraints({"tpot_p50": "<= 10 ms"})
(AT_LEAST,) = parse_constraints({"tpot_p50": ">= 10 ms"})


def around(value: float, spread: float) -> tuple[float, float, float]:
    half = math.exp(Z90 * spread)
    return value, value / half, value * half


def test_a_value_at_its_limit_holds_with_a_half() -> None:
    assert chance(AT_MOST, around(10e-3, 0.2)) == pytest.approx(0.5)


def test_the_upper_end_of_a_90_percent_interval_is_exceeded_once_in_twenty() -> None:
    value = 10e-3 / math.exp(Z90 * 0.3)
    assert chance(AT_MOST, around(value, 0.3)) == pytest.approx(0.95, abs=1e-4)
    assert chance(AT_LEAST, around(value, 0.3)) == pytest.approx(0.05, abs=1e-4)


def test_without_an_interval_nobody_can_say_and_the_value_decides() -> None:
    assert chance(AT_MOST, (9e-3, None, None)) is None
    assert holds(AT_MOST, (9e-3, None, None), 0.99)
    assert not holds(AT_MOST, (11e-3, None, None), 0.5)


def test_what_was_measured_holds_or_does_not_whatever_was_predicted() -> None:
    predicted = {"tpot_p50": around(9.9e-3, 0.5)}
    assert not kept([AT_MOST], predicted, {}, 0.9)
    assert kept([AT_MOST], predicted, {"tpot_p50": 9.9e-3}, 0.9)
    assert not kept([AT_MOST], {"tpot_p50": around(1e-3, 0.1)}, {"tpot_p50": 10.1e-3}, 0.9)


@given(
    value=st.floats(1e-4, 1.0),
    spread=st.floats(0.01, 1.5),
    confidence=st.floats(0.5, 0.99),
    upper=st.booleans(),
)
def test_a_tightened_limit_on_the_value_is_the_limit_held_with_confidence(value, spread, confidence, upper) -> None:
    limit = AT_MOST if upper else AT_LEAST
    (tight,) = tightened([limit], {"tpot_p50": spread}, confidence)
    likely = chance(limit, around(value, spread))
    if abs(likely - confidence) > 1e-9:
        assert tight.holds(value) == (likely >= confidence)
    assert tight.text.startswith(limit.text)
