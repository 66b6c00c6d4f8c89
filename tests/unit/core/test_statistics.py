"""Statistics by hand, by law, by simulation, against published tables and against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chipwise.core.statistics import (
    Z90,
    Z95,
    conformal_half_width,
    kendall_tau,
    nnls,
    normal_cdf,
    normal_density,
    own_speed,
    percentile_interval,
    two_speeds,
    weighted_kendall_taus,
    weighted_quantile,
    wilson_interval,
)


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
    assert found.slow == pytest.approx(np.median(samples[300:]))  # the groups are those that were drawn


def test_a_few_stragglers_are_a_tail_and_no_second_speed() -> None:
    assert two_speeds([1.0, 1.01] * 150 + [2.0] * 10) is None


@given(trials=st.integers(1, 3000), share=st.floats(0, 1))
def test_wilsons_interval_holds_its_share(trials: int, share: float) -> None:
    successes = round(share * trials)
    low, high = wilson_interval(successes, trials)
    assert 0 <= low <= successes / trials <= high <= 1


def test_wilsons_interval_as_published() -> None:
    """Newcombe 1998 (Statistics in Medicine 17:857), table I, method 3: 81 of 263 and 15 of 148."""
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson_interval(0, 20)[0] == 0.0
    assert wilson_interval(0, 20)[1] == pytest.approx(0.1611, abs=5e-5)


@given(successes=st.integers(0, 500), more=st.integers(1, 500))
def test_the_interval_holds_the_share_and_shrinks(successes: int, more: int) -> None:
    trials = successes + more
    low, high = wilson_interval(successes, trials)
    assert 0 <= low <= successes / trials + 1e-12
    assert successes / trials - 1e-12 <= high <= 1
    wide = wilson_interval(successes * 4, trials * 4)
    assert wide[1] - wide[0] < high - low


def test_nine_of_ten_and_one_to_come() -> None:
    # Of 9 errors the greatest: with one to come it is the 9th of 10. Of 99 the 90th.
    assert conformal_half_width(np.arange(1.0, 10.0)) == 9.0
    assert conformal_half_width(-np.arange(1.0, 100.0)) == 90.0


def test_groups_weigh_the_same_in_a_conformal_half_width() -> None:
    misses = np.r_[np.zeros(99), 0.5]  # a hundred misses of which one group has 99
    assert conformal_half_width(misses) == 0
    assert conformal_half_width(misses, groups=["many"] * 99 + ["one"]) == 0.5


@given(st.lists(st.floats(0, 9), min_size=1, max_size=40), st.floats(0.05, 1))
def test_a_weighted_quantile_holds_its_share_and_no_smaller_value_does(values: list[float], share: float) -> None:
    found = weighted_quantile(values, np.ones(len(values)), share)
    assert np.mean(np.asarray(values) <= found) >= share - 1e-9
    assert np.mean(np.asarray(values) < found) <= share + 1e-9
    doubled = weighted_quantile(values, np.full(len(values), 2.0), share)
    assert doubled == found


def test_normal_distribution_by_its_table() -> None:
    assert normal_cdf([0.0, 1.0, -1.0, 1.959964]) == pytest.approx([0.5, 0.841345, 0.158655, 0.975], abs=1e-6)
    assert normal_cdf(Z90) - normal_cdf(-Z90) == pytest.approx(0.9, abs=1e-3)
    assert normal_cdf(Z95) == pytest.approx(0.975, abs=1e-12)
    assert normal_density([0.0, 1.0]) == pytest.approx([0.398942, 0.241971], abs=1e-6)


def test_tau_by_hand() -> None:
    """Of three pairs two agree and one does not; with one tie in ``first``, 2 of sqrt(2 · 3) pairs remain."""
    assert kendall_tau([1, 2, 3], [1, 3, 2]) == pytest.approx(1 / 3)
    assert kendall_tau([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / np.sqrt(2 * 3))
    assert np.isnan(kendall_tau([1, 1], [1, 2]))
    assert np.isnan(kendall_tau([1], [1]))


@given(st.integers(0, 10_000))
def test_tau_is_scipys(seed: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 8, 40).astype(float), rng.integers(0, 8, 40).astype(float)
    assert kendall_tau(a, b) == pytest.approx(stats.kendalltau(a, b).statistic)


def test_a_row_that_counts_twice_is_a_row_that_stands_there_twice() -> None:
    a, b = [1.0, 2.0, 3.0, 4.0], [2.0, 1.0, 4.0, 3.0]
    (found,) = weighted_kendall_taus(a, b, np.array([[2.0, 1.0, 1.0, 0.0]]))
    assert found == pytest.approx(kendall_tau([1.0, 1.0, 2.0, 3.0], [2.0, 2.0, 1.0, 4.0]))


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(2, 12))
def test_nnls_meets_the_conditions_of_its_optimum(seed: int, columns: int, rows: int) -> None:
    """Karush, Kuhn, Tucker: x ≥ 0; the gradient is zero where x > 0 and not negative where x = 0."""
    pytest.importorskip("scipy")
    generator = np.random.default_rng(seed)
    matrix, target = generator.standard_normal((rows, columns)), generator.standard_normal(rows)
    x = nnls(matrix, target)
    gradient = matrix.T @ (matrix @ x - target)
    assert (x >= 0).all()
    assert np.abs(gradient[x > 0]).max(initial=0) < 1e-7
    assert gradient.min() > -1e-7


def test_nnls_finds_rates_of_very_different_size() -> None:
    pytest.importorskip("scipy")
    generator = np.random.default_rng(0)
    matrix = generator.uniform(0.5, 1, (30, 3)) * [1.0, 1e9, 1e-9]
    found = nnls(matrix, matrix @ [1.0, 1e-9, 0.0])
    assert found[:2] == pytest.approx([1.0, 1e-9], rel=1e-6)
    assert matrix[:, 2] * found[2] == pytest.approx(0, abs=1e-12)
    assert list(nnls(np.zeros((2, 1)), [1.0, 1.0])) == [0.0]


@pytest.mark.parametrize("slow_share", [0.0, 0.3, 0.6, 0.9])
def test_a_neighbour_that_comes_and_goes_does_not_change_the_machines_own_speed(slow_share: float) -> None:
    """Work of 100 µs within 2 %, and of 160 µs while a neighbour runs: the median moves by 60 %, this by 2 %."""
    generator = np.random.default_rng(0)
    slow = generator.random(400) < slow_share
    samples = np.where(slow, 160e-6, 100e-6) * np.exp(generator.normal(0, 0.02, 400))
    assert own_speed(samples) == pytest.approx(100e-6, rel=0.02)


def test_own_speed_of_one_sample_is_that_sample() -> None:
    assert own_speed([0.3]) == 0.3


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=60), st.floats(0.1, 10.0))
def test_own_speed_lies_between_the_fastest_and_the_median_in_any_unit(samples: list[float], unit: float) -> None:
    found = own_speed(samples)
    assert min(samples) <= found <= np.median(samples) * (1 + 1e-12)
    assert own_speed([unit * value for value in samples]) == pytest.approx(unit * found, rel=0.16)
