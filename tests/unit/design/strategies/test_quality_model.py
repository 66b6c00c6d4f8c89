"""The quality model: right at once where the prior is, better with every trial, and across fidelities."""

from __future__ import annotations

import numpy as np
import pytest

from chipwise.design.strategies.encoding import Encoder, contrasts
from chipwise.design.strategies.gaussian_process import GaussianProcess
from chipwise.design.strategies.quality_model import QualityModel, worth_keeping
from chipwise.design.strategies.strategy import Goal, Problem

LAYERS = 8


def _size(rows: np.ndarray) -> np.ndarray:
    """Parameters: width x (4 + what the layers add)."""
    return (1.0 + rows[:, 0]) * (4.0 + rows[:, 2:].sum(axis=1))


def _problem(**more: object) -> Problem:
    """Width, depth, and one variable per layer; the last two layers may be absent."""
    return Problem(
        cardinalities=np.array([3, 3] + [3] * LAYERS),
        goals=(Goal(name="bits_per_byte"), Goal(name="size", free=True)),
        free=lambda rows: (_size(np.where(_active(rows), rows, 0))[:, None], np.zeros((len(rows), 0))),
        **more,
    )


def _active(rows: np.ndarray) -> np.ndarray:
    depth = LAYERS - 2 + rows[:, 1]
    layer = np.r_[-1, -1, np.arange(LAYERS)]
    return layer[None] < depth[:, None]


def _quality(rows: np.ndarray) -> np.ndarray:
    """Bits per byte that fall with width and, less and less, with each layer's variable; later layers matter more."""
    weight = 0.02 * np.linspace(0.5, 2, LAYERS) * (1 + 0.3 * rows[:, :1])
    layers = (np.sqrt(rows[:, 2:]) * weight * _active(rows)[:, 2:]).sum(axis=1)
    return 2.2 - 0.15 * rows[:, 0] - layers


def _rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef(np.argsort(np.argsort(a)), np.argsort(np.argsort(b)))[0, 1])


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    problem = _problem(active=_active)
    return np.unique(problem.draw(700, np.random.default_rng(0)), axis=0)


def test_contrasts_are_orthogonal() -> None:
    for cardinality in (2, 3, 5, 12):
        table = contrasts(cardinality)
        product = table.T @ table / cardinality
        assert product == pytest.approx(np.eye(table.shape[1]), abs=1e-9)
        assert table.sum(axis=0) == pytest.approx(0, abs=1e-9)
        assert (np.diff(table[:, 0]) > 0).all()


def test_encoder_guesses_from_the_costs_which_variables_do_not_count() -> None:
    told, guessed = Encoder(_problem(active=_active), seed=0), Encoder(_problem(), seed=0)
    drawn = _problem().draw(200, np.random.default_rng(1))
    assert np.array_equal(told.active(drawn), _active(drawn))
    assert np.array_equal(guessed.active(drawn), _active(drawn))
    assert guessed.strata_columns[0] == 0  # width decides the costs


def test_a_variable_that_moves_no_cost_still_counts() -> None:
    problem = Problem(
        cardinalities=np.array([3, 3, 4]),
        goals=(Goal(name="loss"), Goal(name="cost", free=True)),
        free=lambda rows: (rows[:, :2].sum(axis=1, keepdims=True) + 1.0, np.zeros((len(rows), 0))),
    )
    drawn = problem.draw(50, np.random.default_rng(0))
    assert Encoder(problem, seed=0).active(drawn).all()


def test_without_trials_it_repeats_the_prior(rows: np.ndarray) -> None:
    model = QualityModel(_problem(active=_active, prior=lambda r: -np.log(_size(r))), seed=0)
    model.fit(rows[:0], [])
    mean, std = model.predict(rows)
    assert _rank_correlation(mean, -_size(rows)) > 0.999
    assert (std > 0).all()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
def test_few_trials_give_finite_beliefs_near_what_was_seen(rows: np.ndarray, count: int) -> None:
    for prior in (None, lambda r: -np.log(_size(r))):
        model = QualityModel(_problem(active=_active, prior=prior), seed=0)
        seen = rows[:: len(rows) // 5][:count]
        mean, std = model.fit(seen, _quality(seen)).predict(rows)
        assert np.isfinite(mean).all()
        assert (std > 0).all()
        if count:
            assert np.abs(mean - 2).max() < 1.0
            assert model.predict(seen)[1].max() < std.max()


def test_it_learns_to_a_hundredth_of_the_range_and_knows_how_well(rows: np.ndarray) -> None:
    chosen = np.random.default_rng(3).permutation(len(rows))
    seen, rest = rows[chosen[:60]], rows[chosen[60:]]
    mean, std = QualityModel(_problem(active=_active), seed=0).fit(seen, _quality(seen)).predict(rest)
    error = mean - _quality(rest)
    assert np.sqrt((error**2).mean()) < 0.01 * np.ptp(_quality(rows))
    assert 0.4 < np.sqrt(((error / std) ** 2).mean()) < 2.5


def test_short_trainings_count_as_the_same_curve_seen_earlier(rows: np.ndarray) -> None:
    """40 short trainings, worse by 0.3 and noisier, and 6 full ones: better than the 6 alone, and unbiased."""
    rng = np.random.default_rng(5)
    chosen = rng.permutation(len(rows))
    cut, full, rest = rows[chosen[:40]], rows[chosen[:6]], rows[chosen[40:]]
    early = _quality(cut) + 0.3 + 0.005 * rng.standard_normal(40)
    late = _quality(full)
    both = QualityModel(_problem(active=_active), seed=0).fit(
        np.vstack([cut, full]),
        np.r_[early, late],
        fidelity=np.r_[np.full(40, 0.1), np.ones(6)],
        noise=np.r_[np.full(40, 0.005), np.zeros(6)],
    )
    alone = QualityModel(_problem(active=_active), seed=0).fit(full, late)
    errors = {name: model.predict(rest)[0] - _quality(rest) for name, model in (("both", both), ("alone", alone))}
    assert np.abs(errors["both"].mean()) < 0.03
    assert errors["both"].std() < 0.5 * errors["alone"].std()


def test_a_stated_noise_is_believed() -> None:
    Z = np.array([[0.0], [1.0], [2.0], [3.0], [4.0]])
    values = np.array([0.0, 1.0, 2.0, 3.0, 9.0])
    exact = GaussianProcess(np.array([0])).fit(Z, values)
    doubted = GaussianProcess(np.array([0])).fit(Z, values, noise=np.array([0, 0, 0, 0, 100.0]))
    assert abs(doubted.predict(Z[4:])[0][0] - 4) < abs(exact.predict(Z[4:])[0][0] - 4)


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    rng = np.random.default_rng(0)
    Z, y = rng.standard_normal((12, 5)), rng.standard_normal(12)
    model = GaussianProcess(np.array([0, 0, 1, 2, 2]))
    h = model._h + 0.3 * rng.standard_normal(len(model._h))
    _, slope = model._loss(h, Z, y, np.full(12, 0.01))
    for i in range(len(h)):
        step = np.zeros_like(h)
        step[i] = 1e-5
        up, down = (model._loss(h + sign * step, Z, y, np.full(12, 0.01))[0] for sign in (1, -1))
        assert slope[i] == pytest.approx((up - down) / 2e-5, rel=1e-4, abs=1e-5)


def test_covariance_has_the_deviations_on_its_diagonal(rows: np.ndarray) -> None:
    model = QualityModel(_problem(active=_active), seed=0).fit(rows[:20], _quality(rows[:20]))
    columns = model.columns(rows[100:120])
    assert np.sqrt(np.diag(model.covariance(columns))) == pytest.approx(model.predict_columns(columns)[1], rel=1e-3)


def test_a_long_history_keeps_its_best() -> None:
    rank = np.arange(1000)[::-1]
    kept = worth_keeping(rank, np.random.default_rng(0), most=90)
    assert len(np.unique(kept)) == 90
    assert set(range(940, 1000)) <= set(kept.tolist())
    assert worth_keeping(rank[:50], np.random.default_rng(0), most=90).tolist() == list(range(50))
