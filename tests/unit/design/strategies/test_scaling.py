import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chipwise.training.laws.scaling import PACE, START, Law, fit_law, fit_pace
from chipwise.training.tasks.one_pass import CLASSES


def test_the_law_by_hand() -> None:
    law = Law(floor=1.0, layers=8.0, head=6.0, text=27.0, size_exponent=0.5, text_exponent=1 / 3)
    # 1 + 8 / √16 + 6 / √4 + 27 / ∛27 = 1 + 2 + 3 + 9
    assert law.loss([16], [4], [27]) == pytest.approx([15.0])


def test_fewer_passes_lose_more_where_a_law_says_so() -> None:
    """4 passes: 1 + 4 / 4^1.5 = 1.5 times what many lose; text, which has one pass, loses what it did."""
    drawn = Law(floor=1.0, layers=8.0, head=0.0, text=1.0, size_exponent=0.5, text_exponent=0.5, one_pass=4.0)
    assert drawn.of_passes([1, 4]) == pytest.approx([5.0, 1.5])
    assert START.of_passes([1, 8]).tolist() == [1.0, 1.0]


def test_after_many_passes_classifiers_gain_little_from_more_parameters_or_passes() -> None:
    """From benchmarks/real: width 96 and 64 differ by less than the noise of 6 %; 541 passes equal 126."""
    passes = CLASSES.fresh(np.array([126.0, 541.0]), unique_bytes=1.0) * 3e7
    small, large = CLASSES.loss([1.1e5, 3.0e5], 1.0, passes[0])
    assert 1.0 < small / large < 1.06
    assert 0.94 < float(np.divide(*CLASSES.loss(3e5, 1.0, passes)[::-1])) < 1.0
    assert CLASSES.loss([2.5e4], 1.0, passes[0])[0] / large > 1.2


def test_many_trainings_of_one_law_find_it_again() -> None:
    law = Law(floor=0.9, layers=6.0, head=3.0, text=60.0, size_exponent=0.3, text_exponent=0.3)
    rng = np.random.default_rng(0)
    n, h, d = 10 ** rng.uniform(5, 7, 300), 10 ** rng.uniform(5, 7, 300), 10 ** rng.uniform(5.5, 8, 300)
    found = fit_law(n, h, d, law.loss(n, h, d))
    ahead = [3e5, 3e6], [1e6, 1e6], [3e8, 3e8]  # beyond what was seen
    assert found.loss(*ahead) == pytest.approx(law.loss(*ahead), rel=0.05)


def test_without_trainings_the_law_is_the_stated_one() -> None:
    assert fit_law([], [], [], []) == START
    assert fit_pace([], [], []) == PACE


@given(
    n=st.lists(st.floats(1e4, 1e7), min_size=1, max_size=20),
    budget=st.floats(1e5, 1e8),
    noise=st.integers(0, 1000),
)
@settings(deadline=None)
def test_more_text_and_more_parameters_never_hurt(n, budget, noise) -> None:
    rng = np.random.default_rng(noise)
    law = fit_law(n, np.full(len(n), 1e6), np.full(len(n), budget), rng.uniform(1, 3, len(n)))
    sizes, fixed = np.geomspace(1e4, 1e8, 20), np.full(20, 1e6)
    for arguments in ((sizes, fixed, fixed), (fixed, sizes, fixed), (fixed, fixed, sizes)):
        assert (np.diff(law.loss(*arguments)) <= 1e-12).all()


def test_a_small_model_wins_a_short_training_and_loses_a_long_one() -> None:
    layers, head = np.array([2e5, 3e6]), np.array([1e5, 1e5])
    rate = PACE.tokens_per_s(layers, head)
    short, long = (START.loss(layers, head, rate * seconds * 3) for seconds in (5, 50_000))
    assert short[0] < short[1]
    assert long[0] > long[1]


def test_a_machine_that_takes_four_times_as_long_trains_on_a_quarter_of_the_tokens() -> None:
    sizes = np.array([1e5, 2e6]), np.array([1e5, 4e5])
    assert PACE.times(4).tokens_per_s(*sizes) == pytest.approx(PACE.tokens_per_s(*sizes) / 4)


def test_pace_takes_this_machines_speed() -> None:
    layers, head = np.array([1e5, 5e5, 2e6]), np.array([1e5, 2e5, 4e5])
    twice = fit_pace(layers, head, 2 * PACE.tokens_per_s(layers, head))
    assert twice.tokens_per_s([1e6], [3e5]) == pytest.approx(2 * PACE.tokens_per_s([1e6], [3e5]), rel=1e-3)
