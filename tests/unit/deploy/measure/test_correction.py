import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.deploy.calibrate.learning import Z90, correction

positive = st.floats(1e-6, 1e3)


def test_nothing_measured_changes_nothing() -> None:
    known = correction([], error=0.1)
    assert known.factor == 1.0
    assert known.spread == pytest.approx(Z90 * 0.1)


def test_one_pair_is_shrunk_half_way() -> None:
    # log 4 over (one pair + one assumed pair of no error) is log 2
    assert correction([(1.0, 4.0)], error=0.1).factor == pytest.approx(2.0)


def test_many_equal_pairs_approach_their_ratio_and_close_the_interval() -> None:
    many = correction([(2.0, 3.0)] * 200, error=0.2)
    assert many.factor == pytest.approx(1.5, rel=0.01)
    assert many.spread < 0.1


@given(pairs=st.lists(st.tuples(positive, positive), max_size=20), predicted=positive, error=st.floats(0.01, 1))
def test_interval_holds_its_value_and_factor_stays_between_the_ratios(pairs, predicted, error) -> None:
    known = correction(pairs, error=error)
    value, low, high = known.interval(predicted)
    assert low <= value <= high
    ratios = [0.0, *(math.log(m / p) for p, m in pairs)]
    assert min(ratios) - 1e-9 <= math.log(known.factor) <= max(ratios) + 1e-9


def test_extra_error_adds_to_the_variance() -> None:
    """Spreads of 3 and 4 parts in a hundred make 5."""
    known = correction([], error=0.03)
    value, low, high = known.interval(1.0, extra=0.04)
    assert math.log(value / low) == pytest.approx(math.log(high / value)) == pytest.approx(Z90 * 0.05)
