"""Intervals of percentiles and two speeds, by pencil, by law and by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.profile.statistics import percentile_interval, two_speeds


def test_the_median_of_ten_by_the_binomial_table() -> None:
    """P(X ≤ 1) for X of B(10, 1/2) is 11/1024 = 1.07 %, P(X ≤ 2) is 5.5 %: the 2nd and the 9th sample."""
    found = percentile_interval([float(i) for i in range(1, 11)], 0.5)
    assert (found.low, found.value, found.high) == (2.0, 5.5, 9.0)


def test_two_hundred_samples_do_not_bound_a_p99_from_above() -> None:
    """0.99 ** 200 = 13 % of the time all samples lie below it; 0.99 ** 368 = 2.47 % is little enough."""
    assert percentile_interval(range(1, 201), 0.99).high is None
    assert percentile_interval(range(1, 369), 0.99).high == 368
    assert percentile_interval(range(1, 368), 0.99).high is None


def test_the_interval_covers_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        found = percentile_interval(generator.exponential(size=1000), 0.99)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= -np.log(0.01) <= found.high
    assert hits >= 0.93 * 400  # at least 95 %, less three standard errors of 400 draws


@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=300), st.floats(0.05, 0.95))
def test_the_value_lies_inside(samples, share: float) -> None:
    found = percentile_interval(samples, share)
    slack = 1e-12
    assert found.low is None or found.low <= found.value + slack
    assert found.high is None or found.value <= found.high + slack


@pytest.mark.parametrize("seed", range(5))
def test_one_speed_is_one_speed_whatever_its_shape(seed: int) -> None:
    generator = np.random.default_rng(seed)
    assert two_speeds(generator.normal(100, 8, 500)) is None
    assert two_speeds(generator.uniform(80, 120, 500)) is None
    assert two_speeds(100 + generator.exponential(10, 500)) is None
    assert two_speeds([1.0] * 300) is None


def test_a_quarter_of_samples_at_another_clock() -> None:
    generator = np.random.default_rng(0)
    samples = np.concatenate([generator.normal(100, 2, 300), generator.normal(140, 3, 100)])
    found = two_speeds(samples)
    assert found is not None
    assert found.ratio == pytest.approx(1.4, rel=0.02)
    assert found.slow_share == pytest.approx(0.25, abs=0.01)


def test_a_few_stragglers_are_a_tail_and_no_second_speed() -> None:
    assert two_speeds([1.0, 1.01] * 150 + [2.0] * 10) is None
