"""What each classical strategy is for, on problems whose answer is known."""

from __future__ import annotations

import sys
from importlib import metadata

import numpy as np
import pytest

from chipwise.api.testing.strategy_suite import toy_objectives, toy_problem
from chipwise.design.strategies.algorithms import STRATEGIES, make_strategy, strategy_info
from chipwise.design.strategies.algorithms.base import BaseStrategy
from chipwise.design.strategies.algorithms.choice_table import ChoiceTable
from chipwise.design.strategies.strategy import Goal, Limit, Problem
from chipwise.errors import InputError, MissingExtra


def _steps(variables: int = 12, values: int = 4) -> Problem:
    """Loss falls with every step; at most half of all steps are allowed."""
    most = variables * (values - 1) / 2
    return Problem(
        cardinalities=np.full(variables, values),
        goals=(Goal(name="loss"),),
        limits=(Limit(name="steps", free=True),),
        free=lambda rows: (np.zeros((len(rows), 0)), (rows.sum(axis=1) / most - 1)[:, None]),
    )


def _loss(rows: np.ndarray) -> np.ndarray:
    """Each variable counts, later ones more; the best use of 18 steps is 3 in each of the last 6: 6 · 3 · 9.5 = 171."""
    return -(rows @ np.arange(1.0, rows.shape[1] + 1))[:, None]


def _search(name: str, problem: Problem, trials: int, batch: int = 5, **options: object) -> np.ndarray:
    strategy = make_strategy(name, problem, seed=0, **options)
    found = []
    for _ in range(trials // batch):
        rows = strategy.ask(batch)
        strategy.tell(rows, _loss(rows))
        found.append(_loss(rows)[:, 0])
    return np.concatenate(found)


def test_gradient_uses_a_budget_well() -> None:
    """60 trials bring it within 7 % of the best, where random ones are 13 % off."""
    assert _search("gradient", _steps(), 60).min() <= -160 < _search("random", _steps(), 60).min()


def test_reinforce_learns_where_to_draw() -> None:
    losses = _search("reinforce", _steps(), 400)
    assert losses[-100:].mean() < losses[:100].mean() - 20


@pytest.mark.parametrize("name", ["tpe", "evolution"])
def test_breeding_and_modelling_beat_drawing(name: str) -> None:
    """The last 50 of 200 trials are better on average than 50 random ones by a tenth of all there is."""
    assert _search(name, _steps(), 200)[-50:].mean() < _search("random", _steps(), 200)[-50:].mean() - 17


def test_proxy_goes_by_its_score_alone() -> None:
    """The score calls the last variable everything: its best values come first, whatever trials say."""
    problem = Problem(
        cardinalities=np.full(4, 3), goals=(Goal(name="loss"),), prior=lambda rows: -rows @ [1.0, 3.0, 9.0, 27.0]
    )
    one, two = (make_strategy("proxy", problem, seed=0) for _ in range(2))
    for _ in range(5):
        rows, same = one.ask(3), two.ask(3)
        assert np.array_equal(rows, same)
        assert (rows[:, -1] == 2).all()
        one.tell(rows, rows[:, -1:] * 1.0)
        two.tell(same, -same[:, -1:] * 1.0)


def test_proxy_without_a_score_says_so() -> None:
    problem = Problem(cardinalities=np.full(4, 3), goals=(Goal(name="loss"),))
    with pytest.raises(InputError, match="'proxy' needs a score"):
        make_strategy("proxy", problem, seed=0)


def test_grid_is_even_in_what_decides_and_copes_with_any_size() -> None:
    """Width moves the cost a hundred times as much as anything else: of 30 trials each value has 10, give or take 1."""
    problem = Problem(
        cardinalities=np.array([3] * 90),
        goals=(Goal(name="loss"), Goal(name="cost", free=True)),
        free=lambda rows: (100.0 * rows[:, 7:8] + rows.sum(axis=1, keepdims=True), np.zeros((len(rows), 0))),
    )
    assert problem.size() > 1e40
    rows = make_strategy("grid", problem, seed=0).ask(30)
    assert np.abs(np.bincount(rows[:, 7]) - 10).max() <= 1


def test_a_row_is_repaired_in_few_steps() -> None:
    problem = _steps()
    strategy = make_strategy("random", problem, seed=0)
    strategy_base = BaseStrategy(problem, seed=0)
    top = np.full((1, 12), 3)
    assert len(strategy_base.usable(top)) == 0
    row = strategy_base.repaired(top)
    assert row.sum() <= 18
    assert len(strategy_base.usable(row)) == 1
    assert len(strategy.ask(1)) == 1


def test_a_table_expects_what_sampling_shows() -> None:
    """Expectation over independent choices, by listing all 2 x 3 x 2 rows; its slope by a small step."""
    problem = Problem(cardinalities=np.array([2, 3, 2]), goals=(Goal(name="loss"),))
    table = ChoiceTable(problem, decisive=[0])
    rows = np.array([[a, b, c] for a in range(2) for b in range(3) for c in range(2)])
    truth = ((1 + rows[:, 0]) * (1 + rows[:, 1] ** 2) + rows[:, 2]).astype(float)
    weights = table.fit(rows, truth[:, None])
    assert table.expected(weights, table.one_hot(rows))[0][:, 0] == pytest.approx(truth, abs=0.02)
    chance = table.probabilities(np.random.default_rng(0).standard_normal((1, 7)))
    likely = np.prod([chance[0, table.start[i] + rows[:, i]] for i in range(3)], axis=0)
    value, slope = table.expected(weights, chance)
    assert value[0, 0] == pytest.approx(likely @ truth, abs=0.02)
    for i in range(7):
        step = np.zeros((1, 7))
        step[0, i] = 1e-6
        up, down = (table.expected(weights, chance + sign * step)[0][0, 0] for sign in (1, -1))
        assert slope[0, 0, i] == pytest.approx((up - down) / 2e-6, rel=1e-4, abs=1e-6)


def test_the_slope_goes_through_the_softmax() -> None:
    problem = Problem(cardinalities=np.array([2, 3]), goals=(Goal(name="loss"),))
    table, rng = ChoiceTable(problem, decisive=[]), np.random.default_rng(1)
    logits, pull = rng.standard_normal((1, 5)), rng.standard_normal((1, 5))
    slope = table.through_softmax(pull, table.probabilities(logits))
    for i in range(5):
        step = np.zeros((1, 5))
        step[0, i] = 1e-6
        up, down = ((table.probabilities(logits + sign * step) * pull).sum() for sign in (1, -1))
        assert slope[0, i] == pytest.approx((up - down) / 2e-6, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize(("name", "package"), [("tpe", "optuna"), ("gp", "scipy")])
def test_what_is_not_installed_is_named_with_its_extra(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [module for module in sys.modules if module.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"{package} is not installed.*\[{strategy_info(name).extra}\]"):
        make_strategy(name, toy_problem(), seed=0)


class Mine:
    """A strategy of somebody else."""

    def __init__(self, problem: Problem, *, seed: int) -> None:
        self.seed = seed


def test_a_third_party_adds_a_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = metadata.EntryPoint("mine", f"{__name__}:Mine", "chipwise.strategies")
    monkeypatch.setattr(metadata, "entry_points", lambda group: [entry] if group == "chipwise.strategies" else [])
    monkeypatch.setattr(metadata.EntryPoint, "load", lambda self: Mine)
    assert STRATEGIES.names()[-1] == "mine"
    assert isinstance(make_strategy("mine", toy_problem(), seed=3), Mine)
    assert strategy_info("mine").when == "A strategy of somebody else."


def test_auto_goes_on_from_ten_thousand_trials() -> None:
    problem = Problem(
        cardinalities=np.full(75, 3),
        goals=(Goal(name="loss"), Goal(name="cost", free=True)),
        free=lambda rows: (1.0 + rows.sum(axis=1, keepdims=True), np.zeros((len(rows), 0))),
    )
    strategy = make_strategy("auto", problem, seed=0)
    rows = np.unique(problem.draw(10_000, np.random.default_rng(0)), axis=0)
    for part in np.array_split(rows, 1000):
        strategy.tell(part, toy_objectives(part))
    known = {tuple(row) for row in rows}
    for _ in range(2):
        asked = strategy.ask(4)
        assert len(asked) == 4
        assert not known & {tuple(row) for row in asked}
        known |= {tuple(row) for row in asked}
        strategy.tell(asked, toy_objectives(asked))
