"""The surrogate, its columns and the acquisition by pencil, and against the textbook's formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest

from chipwise.design.strategies import gaussian_process
from chipwise.design.strategies.acquisition import adding_most, expected_gain, expected_improvement, frame
from chipwise.design.strategies.encoding import Encoder
from chipwise.design.strategies.gaussian_process import GaussianProcess, _rprop, spread
from chipwise.design.strategies.history import History, penalised
from chipwise.design.strategies.quality_model import QualityModel, worth_keeping
from chipwise.design.strategies.strategy import Goal, Limit, Problem
from chipwise.errors import InputError
from chipwise.training.laws.scaling import PACE, START, Pace, fit_law, fit_pace

SQUARED, SMOOTH, NOISE, CONSTANT = 0.1, 0.03, 1e-3, 4.0  # where the search for hyperparameters starts


def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Constant, additive, squared and smooth parts as they start, for p columns with a weight each."""
    p = a.shape[1]
    additive = a @ b.T / p
    distance = ((a[:, None] - b[None]) ** 2).sum(axis=-1) / p
    return CONSTANT + additive * (1 + SQUARED * additive) + SMOOTH * np.exp(-distance / 2)


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_an_unfitted_process_is_the_textbooks(columns: int) -> None:
    """Rasmussen and Williams 2006, equations 2.25 and 2.26."""
    rng = np.random.default_rng(columns)
    seen, ask, values = rng.normal(size=(6, columns)), rng.normal(size=(4, columns)), rng.normal(size=6)
    process = GaussianProcess(np.arange(columns)).fit(seen, values, steps=0)
    held = kernel(seen, seen) + (NOISE + 1e-8) * np.eye(6)
    near, level = kernel(ask, seen), values.std()
    mean, std = process.predict(ask)
    expected = near @ np.linalg.solve(held, (values - values.mean()) / level)
    np.testing.assert_allclose(mean, values.mean() + level * expected, rtol=1e-6)
    covariance = level**2 * (kernel(ask, ask) - near @ np.linalg.solve(held, near.T))
    np.testing.assert_allclose(process.covariance(ask), covariance, rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(std, np.sqrt(np.diag(covariance)), rtol=1e-4)
    assert process.noise_variance == pytest.approx((NOISE + 1e-8) * level**2)


def test_a_known_noise_is_added_in_the_units_of_the_values() -> None:
    seen, values, noise = np.array([[-1.0], [0.0], [2.0]]), np.array([1.0, 5.0, 3.0]), np.array([0.0, 4.0, 1.0])
    process = GaussianProcess(np.array([0])).fit(seen, values, noise=noise, steps=0)
    held = kernel(seen, seen) + (NOISE + 1e-8) * np.eye(3) + np.diag(noise) / values.var()
    expected = kernel(seen, seen) @ np.linalg.solve(held, values - values.mean())
    np.testing.assert_allclose(process.predict(seen)[0], values.mean() + expected, rtol=1e-6)


def test_deviations_are_scaled_by_the_errors_of_leaving_one_out() -> None:
    """From nine values on: the root mean square z of each value against a fit to the others, within 0.7 to 2."""
    rng = np.random.default_rng(0)
    for scatter, clipped in ((0.3, None), (3.0, 2.0), (0.0, 0.7)):
        seen = rng.normal(size=(9, 2))
        values = 3 * seen[:, 0] + scatter * rng.normal(size=9)
        target = (values - values.mean()) / values.std()
        process = GaussianProcess(np.arange(2)).fit(seen, values, steps=0)
        held = kernel(seen, seen) + (NOISE + 1e-8) * np.eye(9)
        squares = []
        for i in range(9):
            rest = np.delete(np.arange(9), i)
            weights = np.linalg.solve(held[np.ix_(rest, rest)], held[rest, i])
            squares.append((target[i] - weights @ target[rest]) ** 2 / (held[i, i] - weights @ held[rest, i]))
        expected = clipped or math.sqrt(np.mean(squares))
        bare = kernel(seen[:1], seen[:1]) - kernel(seen[:1], seen) @ np.linalg.solve(held, kernel(seen, seen[:1]))
        found = process.predict(seen[:1])[1][0] / (values.std() * math.sqrt(bare[0, 0]))
        assert found == pytest.approx(expected, rel=1e-3)


def test_what_weights_far_from_the_start_are_charged() -> None:
    """Two additive weights moved by 1 and 3: mean 2 of a scale of 3, each 1 away from it; the noise moved by 6."""
    process = GaussianProcess(np.arange(2))
    moved = process._start + np.array([1.0, 3.0, 0.0, 0.0, 0.0, 0.0, 6.0])
    assert process._prior(process._start)[0] == 0.0
    assert process._prior(moved)[0] == pytest.approx((1 + 1) / 2 + (2 / 3) ** 2 / 2 + (6 / 3) ** 2 / 2)


def test_predictions_do_not_depend_on_how_many_are_asked_for_at_once() -> None:
    rng = np.random.default_rng(0)
    process = GaussianProcess(np.arange(2)).fit(rng.normal(size=(5, 2)), rng.normal(size=5), steps=0)
    many = rng.normal(size=(1100, 2))
    one = [process.predict(many[i : i + 1]) for i in (0, 511, 512, 1099)]
    mean, std = process.predict(many)
    assert mean.shape == std.shape == (1100,)
    np.testing.assert_allclose(mean[[0, 511, 512, 1099]], [item[0][0] for item in one])
    np.testing.assert_allclose(std[[0, 511, 512, 1099]], [item[1][0] for item in one])
    assert process.predict(many[:0])[0].shape == (0,)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2.0, 3.0], math.sqrt(2 / 3)),
        ([1.0, 2.0], 0.075),  # a twentieth of the mean
        ([-4.0, -4.0, -4.0], 0.2),
        ([0.0, 0.0, 0.0], 1e-9),
        ([], 1.0),
    ],
)
def test_the_spread_of_few_values_is_guessed(values: list[float], expected: float) -> None:
    assert spread(np.array(values)) == pytest.approx(expected)


def test_steps_follow_the_sign_of_the_slope_and_grow_by_a_fifth() -> None:
    """Down a straight slope from 0: 0.3, then 0.36, then 0.432 further, up to 1 a step; never past -14 and 6."""

    def falling(x: np.ndarray) -> tuple[float, np.ndarray]:
        return float(x.sum()), np.full(len(x), 5.0)

    reached = [float(_rprop(falling, np.zeros(1), steps)[0]) for steps in range(1, 14)]
    assert reached[:4] == pytest.approx([0.0, -0.3, -0.66, -1.092])
    assert reached[-1] - reached[-2] == pytest.approx(-1.0)
    assert _rprop(falling, np.zeros(1), 60)[0] == -14
    assert _rprop(lambda x: (-float(x.sum()), np.full(len(x), -5.0)), np.zeros(1), 60)[0] == 6
    bowl = _rprop(lambda x: (float(((x - 1) ** 2).sum()), 2 * (x - 1)), np.array([0.0, 3.0]), 60)
    assert bowl == pytest.approx([1.0, 1.0], abs=0.01)


def test_a_place_without_a_factorisation_is_left_half_way_back() -> None:
    """The slope leads past -0.5, where nothing can be computed: half way back, and on in smaller steps."""
    asked = []

    def broken(x: np.ndarray) -> tuple[float, np.ndarray]:
        asked.append(float(x[0]))
        if x[0] < -0.5:
            raise np.linalg.LinAlgError
        return float(x[0]), np.ones(1)

    best = _rprop(broken, np.zeros(1), 4)
    assert asked == pytest.approx([0.0, -0.3, -0.66, (-0.66 - 0.3) / 2])
    assert best[0] == pytest.approx(-0.48)


RISE, BEND = math.sqrt(3 / 2), 0.7 / math.sqrt(2)


def free_of(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A cost of e^(first variable) and a violation of a tenth of the third."""
    return np.exp(rows[:, :1].astype(float)), rows[:, 2:3] / 10


def test_columns_by_hand() -> None:
    """Three, two and three values. The first and third are of one kind, so their rises have a sum of their own."""
    problem = Problem(
        cardinalities=np.array([3, 2, 3]),
        goals=(Goal(name="loss"), Goal(name="cost", free=True)),
        limits=(Limit(name="size", free=True),),
        free=free_of,
        kinds=("width", "bias", "width"),
        active=lambda rows: np.column_stack([np.ones((len(rows), 2), bool), rows[:, 1] == 1]),
    )
    encoder = Encoder(problem, seed=0)
    assert encoder.groups.tolist() == [0, 0, 1, 2, 2, 3, 4, 5]
    found = encoder.encode(np.array([[0, 0, 0], [2, 1, 1], [1, 1, 2]]))
    middle = RISE / math.sqrt(2)
    assert found[:, :6] == pytest.approx(
        np.array(
            [
                [-RISE, BEND, -1, 0, 0, -middle],  # the third variable does not count
                [RISE, BEND, 1, 0, -2 * BEND, middle],
                [0, -2 * BEND, 1, RISE, BEND, middle],
            ]
        )
    )
    # The logarithm of the cost is the first variable itself; violations count as 1 + their size, in logarithms.
    assert np.diff(found[[0, 2, 1], 6]) == pytest.approx([found[1, 6] / 2 - found[0, 6] / 2] * 2)
    assert (found[2, 7] - found[0, 7]) / (found[1, 7] - found[0, 7]) == pytest.approx(math.log(1.2) / math.log(1.1))


def test_known_columns_have_mean_zero_and_deviation_one_over_the_space() -> None:
    problem = Problem(
        cardinalities=np.array([5, 4, 6]),
        goals=(Goal(name="loss"), Goal(name="cost", free=True)),
        limits=(Limit(name="size", free=True),),
        free=free_of,
    )
    rows = problem.draw(4000, np.random.default_rng(5))
    known = Encoder(problem, seed=0).encode(rows)[:, -2:]
    assert known.mean(axis=0) == pytest.approx([0, 0], abs=0.1)
    assert known.std(axis=0) == pytest.approx([1, 1], abs=0.05)


def test_a_prior_is_believed_to_seven_tenths_before_any_trial() -> None:
    """Without trials a deviation of the prior counts as 0.7 of one of the values, which is then taken as 1."""
    problem = Problem(
        cardinalities=np.full(3, 4), goals=(Goal(name="loss"),), prior=lambda rows: rows.sum(axis=1).astype(float)
    )
    model = QualityModel(problem, seed=0)
    drawn = problem.draw(512, np.random.default_rng([0, 2])).sum(axis=1)
    model.fit(np.zeros((0, 3), int), [])
    low, high = model.predict(np.array([[0, 0, 0], [3, 3, 3]]))[0]
    assert high - low == pytest.approx(0.7 * 9 / drawn.std())
    columns = model.columns(np.array([[1, 2, 0]]))
    assert columns[0, -2:].tolist() == pytest.approx([(3 - drawn.mean()) / drawn.std(), 0.0])


def test_two_thirds_of_what_is_kept_are_the_best() -> None:
    kept = worth_keeping(np.arange(100.0), np.random.default_rng(0), most=30)
    assert kept.tolist() == sorted(kept.tolist())
    assert kept[:20].tolist() == list(range(20))
    assert len(kept) == 30
    assert kept[20] > 20 or kept[-1] > 30  # the rest is drawn from all over


def test_the_improvement_that_is_expected_of_a_normal_value() -> None:
    """E max(0, best - x) = s (z Φ(z) + φ(z)): 0.3989 at the mean, 1.0833 a deviation above it."""
    mean, one = np.array([0.0]), np.array([1.0])
    assert expected_improvement(mean, one, np.array(0.0)) == pytest.approx([0.39894228])
    assert expected_improvement(mean, one, np.array(1.0)) == pytest.approx([1.08331547])
    assert expected_improvement(mean, 2 * one, np.array(2.0)) == pytest.approx([2 * 1.08331547])
    assert expected_improvement(mean, 0 * one, np.array([-1.0, 0.0, 3.0])) == pytest.approx([0, 0, 3])


def test_one_objective_improves_on_the_best_or_on_the_corner() -> None:
    mean, std = np.array([[0.0], [2.0]]), np.array([[0.0], [0.0]])
    assert expected_gain(mean, std, np.array([[0.5], [3.0]]), np.array([1.0])).tolist() == pytest.approx([0.5, 0])
    assert expected_gain(mean, std, np.zeros((0, 1)), np.array([1.0])).tolist() == pytest.approx([1.0, 0])


def test_a_sure_candidate_adds_the_corner_that_it_is_first_to_dominate() -> None:
    """Front (1, 3) and (2, 1) below (4, 4). (1.5, 2) adds 0.5 · 1; (0, 0) adds 16 - 3 - 6 + 2; (2, 2) nothing."""
    front, corner = np.array([[2.0, 1.0], [1.0, 3.0], [5.0, 0.0]]), np.array([4.0, 4.0])
    mean = np.array([[1.5, 2.0], [0.0, 0.0], [2.0, 2.0], [4.5, 0.0], [0.0, 4.5]])
    held = 3 * 1 + 2 * 3 - 2 * 1  # of the front: both rectangles, less what they share
    for expensive in (0, 1):
        std = np.zeros_like(mean)
        std[:, expensive] = 1e-9
        found = expected_gain(mean, std, front, corner)
        assert found.tolist() == pytest.approx([0.5, 16 - held, 0, 0, 0], abs=1e-6)


def test_the_frame_is_the_ideal_and_the_span_of_the_front() -> None:
    low, span = frame(np.array([[0.0, 4.0], [2.0, 2.0], [9.0, 9.0]]))
    assert (low.tolist(), span.tolist()) == ([0, 2], [2, 2])
    low, span = frame(np.array([[1.0, 1.0], [3.0, 5.0]]))  # a front of one point: as far as anything goes
    assert (low.tolist(), span.tolist()) == ([1, 1], [2, 4])
    assert frame(np.array([[1.0, 2.0]]))[1].tolist() == [1, 1]


PROBLEM = Problem(
    cardinalities=np.array([3, 4]),
    goals=(Goal(name="speed", direction="maximize"), Goal(name="cost", free=True)),
    limits=(Limit(name="soft", free=True, penalty=0.5), Limit(name="hard", free=True)),
    free=lambda rows: (rows[:, :1] * 1.0, np.column_stack([rows[:, 0] - 1.0, rows[:, 1] - 2.0])),
    prior=lambda rows: rows[:, 0] * 2.0,
)


def test_signs_limits_and_penalties_of_a_problem() -> None:
    rows = np.array([[0, 0], [2, 1], [2, 3]])
    assert PROBLEM.size() == 12
    assert PROBLEM.to_minimise([[5.0, 7.0]]).tolist() == [[-5, 7]]
    costs, violations = PROBLEM.price(rows)
    assert (costs[:, 0].tolist(), violations.tolist()) == ([0, 2, 2], [[-1, -2], [1, -1], [1, 1]])
    assert PROBLEM.feasible(violations).tolist() == [True, True, False]
    assert PROBLEM.penalty(violations).tolist() == [0, 0.5, 0.5]
    assert PROBLEM.prior_values(rows).tolist() == [0, -4, -4]  # a prior of speed, to be minimised
    assert (PROBLEM.expensive_goals, PROBLEM.free_goals, PROBLEM.expensive_limits) == ([0], [1], [])
    drawn = PROBLEM.draw(6000, np.random.default_rng(0))
    assert np.bincount(drawn[:, 0]) / 6000 == pytest.approx([1 / 3] * 3, abs=0.03)
    assert np.bincount(drawn[:, 1]) / 6000 == pytest.approx([1 / 4] * 4, abs=0.03)


def test_a_history_knows_what_is_done_what_is_on_its_way_and_what_counts() -> None:
    history = History(PROBLEM)
    rows = np.array([[0, 0], [2, 1], [2, 3]])
    assert history.is_new(rows[[0, 0, 1]]).tolist() == [True, False, True]
    history.mark_pending(rows[:2])
    assert history.is_new(rows).tolist() == [False, False, True]
    assert history.pending.tolist() == rows[:2].tolist()
    history.unmark_pending(rows[1:2])
    assert history.is_new(rows).tolist() == [False, True, True]
    history.tell(rows, [[5.0, 0.0], [4.0, 2.0], [9.0, 2.0]])
    assert (len(history), history.trial_count, len(history.pending)) == (3, 3, 0)
    assert history.objectives.tolist() == [[-5, 0], [-4, 2], [-9, 2]]
    assert history.feasible.tolist() == [True, True, False]
    assert history.counted[:, 0].tolist() == [-5, -2, -4.5]  # half as bad again for each whole violation
    history.tell([[1, 1]], None)
    history.tell([[1, 2]], [[np.nan, 1.0]])
    assert (len(history), history.trial_count) == (3, 5)
    assert history.is_new(np.array([[1, 1], [1, 2], [1, 3]])).tolist() == [False, False, True]
    for wrong in ([[1.0]], [[1.0, 2.0, 3.0]]):
        with pytest.raises(InputError, match=r"need objectives of shape \(1, 2\)"):
            history.tell([[0, 1]], wrong)
    with pytest.raises(InputError, match=r"need violations of shape \(1, 2\)"):
        history.tell([[0, 1]], [[1.0, 2.0]], [[1.0, 2.0, 3.0]])
    history.tell([], None)
    assert history.trial_count == 5


def test_penalties_worsen_by_a_share_of_the_size() -> None:
    points = np.array([[-2.0, 1.0], [4.0, 1.0]])
    assert penalised(points, np.array([0.5, 0.25])).tolist() == [[-1, 1], [5, 1]]
    assert points[0, 0] == -2.0  # the caller's are left alone


def test_pace_by_hand_and_of_one_machine() -> None:
    pace = Pace(token_s=1e-3, layer_parameter_s=1e-6, head_parameter_s=2e-6)
    assert pace.tokens_per_s([1000.0], [500.0]) == pytest.approx([1 / 3e-3])
    sizes = np.array([1e5, 1e6, 4e6, 2e5]), np.array([1e5, 3e5, 1e5, 2e6])
    slow = Pace(**{name: 3 * getattr(PACE, name) for name in ("token_s", "layer_parameter_s", "head_parameter_s")})
    found = fit_pace(*sizes, slow.tokens_per_s(*sizes))
    assert found.token_s == pytest.approx(slow.token_s, rel=1e-6)
    assert found.layer_parameter_s == pytest.approx(slow.layer_parameter_s, rel=1e-6)
    assert found.head_parameter_s == pytest.approx(slow.head_parameter_s, rel=1e-6)


def test_one_training_says_how_fast_a_machine_is_and_the_stated_law_says_the_rest() -> None:
    """Twice the stated speed at one size is twice the stated speed at every size; a quality on the law is the law."""
    one = np.array([2e5]), np.array([3e5])
    found = fit_pace(*one, 2 * PACE.tokens_per_s(*one))
    sizes = np.array([1e5, 3e6, 1e6]), np.array([2e6, 1e5, 1e6])
    assert found.tokens_per_s(*sizes) == pytest.approx(2 * PACE.tokens_per_s(*sizes), rel=1e-6)
    text = np.array([1e7])
    law = fit_law(*one, text, START.loss(*one, text))
    read = np.array([3e6, 1e7, 5e7])
    assert law.loss(*sizes, read) == pytest.approx(START.loss(*sizes, read), rel=0.02)
    worse = fit_law(*one, text, 1.2 * START.loss(*one, text))
    ratio = float(worse.loss(*one, text)[0] / START.loss(*one, text)[0])
    assert 1.1 < ratio < 1.2  # one training moves the law nearly all of the way there


def test_points_that_add_most_one_after_another() -> None:
    """Below a corner of 1.1, (0.5, 0.5) holds 0.36; the ends add 0.5 · 0.1 and 0.05 · 0.5, (0.9, 0.9) nothing."""
    points = np.array([[0.0, 1.0], [0.9, 0.9], [1.05, 0.0], [0.5, 0.5]])
    none = np.zeros((0, 2))
    assert adding_most(points, none, expensive=[0], doubt=1e-9, count=9) == [3, 0, 2, 1]
    assert adding_most(points, points[3:], expensive=[0], doubt=1e-9, count=2) == [0, 2]
    assert adding_most(points[:0], none, expensive=[0], doubt=1e-9, count=2) == []


@pytest.mark.parametrize(
    ("n", "taken"),
    [(10, [50]), (300, [50]), (400, [28]), (424, [25]), (430, [50, 3]), (600, [50, 3]), (4000, [50, 3])],
)
def test_hyperparameters_are_searched_in_fewer_steps_over_more_observations(monkeypatch, n: int, taken) -> None:
    """50 steps up to 300 observations, (300 / n)² as many beyond; where that is under half, on some of them first."""
    found: list[int] = []

    def search(loss, start, steps):
        found.append(steps)
        return start

    monkeypatch.setattr(gaussian_process, "_rprop", search)
    process = GaussianProcess(np.array([0]))
    process._search(np.zeros((n, 1)), np.zeros(n), np.zeros(n), 50)
    assert found == taken


def test_a_quality_models_noise_is_its_processs() -> None:
    problem = Problem(cardinalities=np.array([4, 4]), goals=(Goal(name="loss"),))
    rows = np.array([[i, j] for i in range(3) for j in range(3)])
    model = QualityModel(problem, seed=0).fit(rows, rows.sum(axis=1) * 1.0)
    assert model.noise_variance == model._gp.noise_variance > 0
