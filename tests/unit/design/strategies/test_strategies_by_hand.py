"""Steps of the strategies where each can be worked out: walks, policies, strata, what is guessed of a space."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chipwise.core.statistics import normal_cdf
from chipwise.design.strategies.algorithms import auto, gradient, reinforce
from chipwise.design.strategies.algorithms.auto import Auto, _condition
from chipwise.design.strategies.algorithms.choice_table import ChoiceTable
from chipwise.design.strategies.algorithms.gradient import Gradient
from chipwise.design.strategies.algorithms.grid import Grid
from chipwise.design.strategies.algorithms.proxy import Proxy
from chipwise.design.strategies.algorithms.reinforce import Reinforce
from chipwise.design.strategies.encoding import Encoder, _alike, _conditions, _named, _runs
from chipwise.design.strategies.gaussian_process import GaussianProcess
from chipwise.design.strategies.pool import Pool
from chipwise.design.strategies.strategy import Goal, Limit, Problem

LOSS = (Goal(name="loss"),)
COSTED = (Goal(name="loss"), Goal(name="cost", free=True))


def one_cost(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first variable decides: e^(3 x + y)."""
    return np.exp(3.0 * rows[:, :1] + rows[:, 1:2]), np.zeros((len(rows), 0))


SIMPLE = Problem(cardinalities=np.array([3, 2, 4]), goals=COSTED, free=one_cost)


def test_the_likelihood_of_a_process_is_the_normal_densitys() -> None:
    """Rasmussen and Williams 2006, equation 2.30, without the constant n/2 ln 2π."""
    rng = np.random.default_rng(0)
    seen, y, level = rng.normal(size=(7, 2)), rng.normal(size=7), rng.uniform(0.1, 0.4, 7)
    process = GaussianProcess(np.arange(2))
    h = process._h + 0.2 * rng.standard_normal(len(process._h))
    weights, scales, (squared, smooth, noise) = np.exp(h[:2]), np.exp(h[2:4]), np.exp(h[4:])
    additive = (seen * weights) @ seen.T
    distance = (((seen[:, None] - seen[None]) ** 2) * scales).sum(axis=-1)
    K = 4 + additive * (1 + squared * additive) + smooth * np.exp(-distance / 2) + np.diag(noise + level + 1e-8)
    expected = y @ np.linalg.solve(K, y) / 2 + np.linalg.slogdet(K)[1] / 2
    assert process._loss(h, seen, y, level)[0] - process._prior(h)[0] == pytest.approx(expected)


def test_how_much_each_variable_moves_the_costs() -> None:
    """ln cost = 3 x + y with x of 3 and y of 2 values: its variance is 9 · 2/3 + 1/4; x moves it by 6, y by 1."""
    encoder = Encoder(SIMPLE, seed=0)
    deviation = math.sqrt(9 * 2 / 3 + 1 / 4)
    assert encoder.effects == pytest.approx(np.array([6, 1, 0]) / deviation, rel=0.05)
    assert encoder.effects[0] / encoder.effects[1] == pytest.approx(6)
    assert encoder.direction[:, 0] == pytest.approx(encoder.effects)
    falling = Problem(
        cardinalities=np.array([3, 2, 4]), goals=COSTED, free=lambda r: (1 / one_cost(r)[0], one_cost(r)[1])
    )
    assert Encoder(falling, seed=0).direction[:, 0] == pytest.approx(-encoder.effects, rel=0.05)
    assert encoder.strata_columns == [0]
    assert encoder.strata(np.array([[2, 1, 3], [0, 0, 0]])).tolist() == [2, 0]


@pytest.mark.parametrize(
    ("counts", "factors", "chosen"),
    [
        ((3, 3, 3, 3, 3), (9, 8, 1, 1, 1), [0, 1]),  # both stand out
        ((3, 3, 3, 3, 3), (1, 8, 1, 9, 1), [3, 1]),  # the stronger one first
        ((3, 3, 3, 3, 3), (9, 1.5, 1, 1, 1), [0]),  # less than twice the usual
        ((6, 6, 3, 3, 3), (9, 8, 2, 2, 2), [0, 1]),  # 36 strata
        ((6, 7, 3, 3, 3), (9, 8, 2, 2, 2), [1]),  # 6 values move as far as 7 and would make 42: the wider one alone
        ((3, 3, 3, 3, 3), (0, 0, 0, 0, 0), []),
    ],
)
def test_at_most_two_variables_and_36_strata_decide(counts: Any, factors: Any, chosen: list[int]) -> None:
    def free(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.exp(rows @ np.array(factors, float) / 9)[:, None], np.zeros((len(rows), 0))

    problem = Problem(cardinalities=np.array(counts), goals=COSTED, free=free)
    encoder = Encoder(problem, seed=0)
    assert encoder.strata_columns == chosen
    row = np.array([[2, 1, 0, 2, 0]])
    number = 0
    for column in chosen:
        number = number * counts[column] + int(row[0, column])
    assert encoder.strata(row).tolist() == [number]


def test_variables_of_one_kind_are_named_guessed_by_runs_or_by_what_they_cost() -> None:
    named = Problem(cardinalities=np.array([3, 2, 3, 1, 1, 2]), goals=LOSS, kinds=("a", "a", "a", "b", "b", "c"))
    assert _named(named, named.kinds) == [[0, 2]]  # of equal names and sizes, more than one, with more than one value
    problem = Problem(cardinalities=np.array([4, 3, 3, 3, 5, 5, 5, 5]), goals=LOSS)
    rules = [(2, 0, np.array([0])), (3, 0, np.array([0, 1])), (6, 0, np.array([0])), (7, 0, np.array([0, 1]))]
    assert _runs(problem, rules) == [[1, 2, 3], [4, 5, 6, 7]]
    assert _runs(problem, []) == []
    last = [(2, 0, np.array([0])), (5, 0, np.array([0, 1]))]  # 5 is inactive most often: a stretch ends there
    assert _runs(Problem(cardinalities=np.array([2, 3, 3, 3, 3, 3, 3, 3, 3]), goals=LOSS), last) == [
        [1, 2, 3, 4, 5],
        [6, 7, 8],
    ]
    effect = np.array([1.0, 1.1, 0.0, 0.9, 5.0, 5.1, 5.0, 1.3])[None, :, None]
    same = Problem(cardinalities=np.array([3] * 8), goals=LOSS)
    # around 5.1 within 1.3: three; around 1.3 within 0.33: 1.1, at a mean of 1.2 also 1.0, at 1.13 also 0.9
    assert _alike(same, effect, np.ones((1, 8), bool)) == [[4, 5, 6], [0, 1, 3, 7]]
    effect[0, 7] = 1.5  # within 0.38: 1.1 is too far
    assert _alike(same, effect, np.ones((1, 8), bool)) == [[4, 5, 6], [0, 1, 3]]
    near = np.array([1.0, 1.1, 0.0, 0.9, -1.0])[None, :, None]
    five = Problem(cardinalities=np.array([3] * 5), goals=LOSS)
    assert _alike(five, near, np.ones((1, 5), bool)) == [[0, 1, 3]]
    mixed = Problem(cardinalities=np.array([3, 3, 3, 4, 3]), goals=LOSS)
    assert _alike(mixed, near, np.ones((1, 5), bool)) == []
    assert _alike(five, near[..., :0], np.ones((1, 5), bool)) == []
    # an effect counts by the rows in which the variable is active
    some = np.array([[1.0, 1.0, 1.0], [1.0, 1.0, 9.0]])[..., None]
    three = Problem(cardinalities=np.array([3] * 3), goals=LOSS)
    assert _alike(three, some, np.array([[True] * 3, [True, True, False]])) == [[0, 1, 2]]
    assert _alike(three, some, np.ones((2, 3), bool)) == []


def test_when_a_variable_counts_is_read_off_what_it_moves() -> None:
    base = np.array([[0, 1, 0], [1, 0, 1], [2, 1, 1], [0, 0, 1]])
    moved = np.array([[False, True, True], [True, True, True], [False, True, True], [True, True, True]])
    ((column, switch, off),) = _conditions(Problem(cardinalities=np.array([3, 2, 2]), goals=LOSS), base, moved)
    assert (column, switch, off.tolist()) == (0, 1, [1])
    # nothing but itself explains it, or it never moves, or always
    assert _conditions(Problem(cardinalities=np.array([3]), goals=LOSS), base[:, :1], moved[:, :1]) == []
    assert _conditions(SIMPLE, base, np.zeros((4, 3), bool)) == []


def test_a_table_of_choices_is_a_ridge_regression() -> None:
    """Least squares with a thousandth of the squared weights; with fewer rows than features, a thousandth a row."""
    problem, rng = Problem(cardinalities=np.array([2, 3]), goals=LOSS), np.random.default_rng(0)
    table = ChoiceTable(problem, [0])
    chance = np.array([[0.25, 0.75, 0.5, 0.5, 0.0]])
    features = table.features(chance)[0]
    assert features.tolist() == [1.0, *chance[0], *(0.25 * chance[0]), *(0.75 * chance[0])]
    for count in (40, 5):
        rows = problem.draw(count, rng)
        values = rng.normal(3, 1, (count, 2))
        X = table.features(table.one_hot(rows))
        ridge = math.sqrt(1e-3 * (count if count < X.shape[1] else 1))
        padded = np.vstack([X, ridge * np.eye(X.shape[1])])
        centred = np.vstack([values - values.mean(axis=0), np.zeros((X.shape[1], 2))])
        expected = np.linalg.lstsq(padded, centred, rcond=None)[0]
        expected[0] += values.mean(axis=0)
        assert table.fit(rows, values) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def still(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.zeros(shape)


def walked(
    monkeypatch: pytest.MonkeyPatch, *, limits: np.ndarray, steps: int = 2
) -> tuple[np.ndarray, np.ndarray, Any]:
    """Logits before and after a walk without noise down one goal: the third value of the second variable is worst."""
    problem = Problem(cardinalities=np.array([2, 3]), goals=LOSS)
    walker = Gradient(problem, seed=0)
    monkeypatch.setattr(gradient, "gumbel", still)
    monkeypatch.setattr(gradient, "_STEPS", steps)
    goals = np.array([[1.0], [0.5], [-0.5], [0.0], [1.0], [3.0]])
    walker.rng = np.random.default_rng(7)
    begun = 0.5 * np.random.default_rng(7).standard_normal((gradient._WALKS, 5))
    return begun, walker._walk(goals, limits, np.array([0.0]), np.array([2.0])), walker._table


@pytest.mark.parametrize("limited", [False, True])
def test_a_walk_is_adam_down_the_expected_loss(monkeypatch: pytest.MonkeyPatch, limited: bool) -> None:
    """Two steps at temperatures 2 and 0.3, slopes by small differences; Adam's of Kingma and Ba with 0.9 and 0.99.

    One goal of a span of 2 has a weight of 1.02; an expected violation counts four spans.
    """
    over = np.array([[0.2], [0.0], [0.4], [0.0], [0.1], [0.2]]) if limited else np.zeros((6, 0))
    begun, ended, table = walked(monkeypatch, limits=over)
    goals = np.array([1.0, 0.5, -0.5, 0.0, 1.0, 3.0])

    def height(logits: np.ndarray, heat: float) -> np.ndarray:
        chance = table.probabilities(logits / heat)
        found = 1.02 * (goals[0] + chance @ goals[1:]) / 2
        return found + 4 * (over[0, 0] + chance @ over[1:, 0]) if limited else found

    at = begun.copy()
    first, second = np.zeros_like(at), np.zeros_like(at)
    for step, heat in enumerate((2.0, 0.3), 1):
        slope = np.zeros_like(at)
        for i in range(5):
            up, down = at.copy(), at.copy()
            up[:, i] += 1e-5
            down[:, i] -= 1e-5
            slope[:, i] = (height(up, heat) - height(down, heat)) / 2e-5
        first, second = 0.9 * first + 0.1 * slope, 0.99 * second + 0.01 * slope**2
        at -= 0.15 * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.99**step)) + 1e-9)
    assert ended == pytest.approx(at, abs=2e-3)


def test_a_walk_stays_finite_where_one_goal_is_far_past_its_span(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first goal varies by 10,000 spans and the second by less than one: the soft maximum is the first alone."""
    problem = Problem(cardinalities=np.array([2, 3]), goals=COSTED, free=lambda rows: (rows[:, :1] * 0.5, rows[:, :0]))
    walker = Gradient(problem, seed=0)
    monkeypatch.setattr(gradient, "gumbel", still)
    monkeypatch.setattr(gradient, "_STEPS", 2)
    goals = np.zeros((len(walker._free), 2))
    goals[1:6, 0] = [1.0, 2.0, 3.0, 1.0, 2.0]
    goals[1:6, 1] = [0.0, 0.5, 0.0, 0.0, 0.0]
    no_limits = np.zeros((len(goals), 0))

    def walked(second: float) -> np.ndarray:
        walker.rng = np.random.default_rng(7)
        return walker._walk(goals * [1.0, second], no_limits, np.zeros(2), np.array([1e-4, 1.0]))

    ended = walked(1.0)
    assert np.isfinite(ended).all()
    assert ended == pytest.approx(walked(0.0))


def test_walks_end_at_the_least_loss_and_begin_in_all_strata(monkeypatch: pytest.MonkeyPatch) -> None:
    _, ended, table = walked(monkeypatch, limits=np.zeros((6, 0)), steps=100)
    assert table.rows(ended).tolist() == [[1, 0]] * len(ended)
    walker = Gradient(SIMPLE, seed=0)
    monkeypatch.setattr(gradient, "_RATE", 0.0)
    goals = np.zeros((len(walker._free), 2))
    begun = walker._walk(goals, np.zeros((len(walker._free), 0)), np.zeros(2), np.ones(2))
    leaning = table_rows(walker._table, begun)[:, 0]
    assert set(leaning.tolist()) == {0, 1, 2}
    top = np.sort(begun[:, :3], axis=1)
    assert np.median(top[:, 2] - top[:, 1]) == pytest.approx(4, abs=0.8)  # of logits of deviation 1/2


def table_rows(table: ChoiceTable, scores: np.ndarray) -> np.ndarray:
    return table.rows(scores)


def test_a_prior_counts_as_far_as_the_trials_bear_it_out() -> None:
    """Losses are twice the guess and a constant: the table is then the guess's; against it, nothing of the guess."""
    problem = Problem(cardinalities=np.array([3, 4]), goals=LOSS, prior=lambda rows: 1.0 * rows[:, 0] - rows[:, 1])
    rows = np.array([[a, b] for a in range(3) for b in range(4)])
    for sign in (1.0, -1.0):
        walker = Gradient(problem, seed=0)
        losses = 5 + sign * 2 * (rows[:, 0] - rows[:, 1])
        walker.tell(rows, losses[:, None])
        goals, limits = walker._weights()
        assert limits.shape == (len(goals), 0)
        found = walker._table.expected(goals, walker._table.one_hot(rows))[0][:, 0]
        assert found == pytest.approx(losses, abs=0.02)
        alone = walker._learnt(losses * 1.0, prior=False)
        bare = walker._table.fit(rows, losses[:, None] * 1.0)[:, 0]
        assert alone == pytest.approx(bare)
        believed = walker._learnt(losses * 1.0, prior=True)
        assert (np.abs(believed - bare).max() > 1e-6) == (sign > 0)


def test_the_rows_that_add_most_by_the_tables() -> None:
    """Free costs are exact, losses the table's: (2, 0) and (0, 2) around a known (1, 1.9); (2, 2) adds nothing."""
    problem = Problem(
        cardinalities=np.array([3, 3]),
        goals=COSTED,
        free=lambda rows: (1.0 * rows[:, 1:2], np.zeros((len(rows), 0))),
    )
    walker = Gradient(problem, seed=0)
    goals = np.zeros((len(walker._free), 2))
    goals[1:4, 0] = [0.0, 1.0, 2.0]
    rows = np.array([[2, 2], [2, 0], [0, 2]])
    chosen = walker._spread(rows, goals, np.array([[1.0, 1.9]]), np.zeros(2), np.array([2.0, 2.0]), 2)
    assert sorted(chosen.tolist()) == [[0, 2], [2, 0]]
    assert walker._spread(rows[:0], goals, np.zeros((1, 2)), np.zeros(2), np.ones(2), 2).shape == (0, 2)


def test_one_step_of_a_policy_by_hand() -> None:
    """Two values, as likely: a trial that beats half moves its logit by 0.35 · 1/2, and all by 0.995 twice."""
    policy = Reinforce(Problem(cardinalities=np.array([2]), goals=LOSS), seed=0)
    policy._learn(0, np.array([[0], [1], [1]]), np.array([3.0, 1.0, 0.5]))
    assert policy._logits.tolist() == [[0.75, -0.75]]  # 3 · 1/2 - 1.5 · 1/2
    policy = Reinforce(Problem(cardinalities=np.array([2]), goals=LOSS), seed=0)
    policy.tell([[0], [1]], [[1.0], [2.0]])
    moved = 0.35 * 0.5 * 0.995**2
    assert policy._logits[0] == pytest.approx([moved, -moved])
    policy.tell([[1]], None)
    assert policy._logits[0] == pytest.approx([moved, -moved])
    # A third trial, the worst so far: two in three did better, and 1 is drawn less often than 0 by now
    policy.tell([[1]], [[3.0]])
    chance = 1 / (1 + math.exp(2 * moved))
    step = 0.35 * (0.5 - 2 / 3) * 2
    expected = [(moved - step * (1 - chance)) * 0.995, (-moved + step * (1 - chance)) * 0.995]
    assert policy._logits[0] == pytest.approx(expected)


def test_a_trial_teaches_a_policy_by_how_much_likelier_it_was_to_draw_it() -> None:
    """Two policies, one of which never draws the second value: what it brings is the other's, counted twice at most."""
    problem = Problem(cardinalities=np.array([2]), goals=(*LOSS, Goal(name="size")))
    policy = Reinforce(problem, seed=0)
    policy._logits = np.array([[20.0, -20.0], [0.0, 0.0]])
    policy._weights = np.array([[1.0, 0.0], [0.5, 0.5]])
    policy.tell([[1], [0]], [[1.0, 4.0], [2.0, 6.0]])
    assert policy._logits[0] == pytest.approx(np.array([20.0, -20.0]) * 0.995**2, rel=1e-6)
    # share of the first trial 2; it is best: 0.35 · 2 · 1 · (1 - 1/2); the second has 2/3 of a share and rank 1/2
    gained = 0.35 * 2 * 0.5
    assert policy._logits[1] == pytest.approx(np.array([-gained, gained]) * 0.995**2, rel=1e-6)


def test_what_breaks_a_limit_is_worse_than_all_that_does_not() -> None:
    problem = Problem(cardinalities=np.array([3]), goals=LOSS, limits=(Limit(name="memory"),))
    policy = Reinforce(problem, seed=0)
    policy.tell([[0], [1], [2]], [[9.0], [1.0], [1.0]], [[-1.0], [0.5], [0.2]])
    order = np.argsort(-policy._logits[0]).tolist()
    assert order == [0, 2, 1]
    assert len(Reinforce(SIMPLE, seed=0)._logits) == reinforce._POLICIES == 10
    weights = Reinforce(SIMPLE, seed=0)._weights
    assert weights.sum(axis=1) == pytest.approx([1.04] * 10)  # shares of one, and 0.02 of each goal
    assert weights.min() >= 0.02


def test_policies_take_turns() -> None:
    problem = Problem(cardinalities=np.array([40]), goals=(*LOSS, Goal(name="size")))
    policy = Reinforce(problem, seed=0)
    policy._logits = np.full((10, 40), -50.0)
    policy._logits[np.arange(10), 3 * np.arange(10)] = 50.0
    assert policy.ask(10)[:, 0].tolist() == [3 * i for i in range(10)]


def test_draws_that_break_a_free_limit_are_taught_at_once() -> None:
    """All but the first of four values are beyond the limit: the policy moves to it, without a trial."""
    problem = Problem(
        cardinalities=np.array([4, 9]),
        goals=LOSS,
        limits=(Limit(name="size", free=True),),
        free=lambda rows: (np.zeros((len(rows), 0)), rows[:, :1] - 0.5),
    )
    policy = Reinforce(problem, seed=0)
    policy.history.trial_count = 20
    asked = policy.propose(6)
    assert (asked[:, 0] == 0).all()
    assert len(np.unique(asked, axis=0)) == len(asked) == 6
    chance = policy._table.probabilities(policy._logits)[0]
    assert chance[0] > 0.3
    assert chance[0] > chance[1] > chance[3]


def made(problem: Problem = SIMPLE, rows: np.ndarray | None = None) -> tuple[Auto, Pool]:
    """The default strategy with a pool of all rows, or of these."""
    found = Auto(problem, seed=0)
    pool = Pool(problem, found._encoder, found._plain.columns, 0)
    every = np.stack(np.meshgrid(*map(np.arange, problem.cardinalities), indexing="ij"), -1).reshape(
        -1, len(problem.cardinalities)
    )
    pool.add(every if rows is None else rows)
    return found, pool


def test_rows_are_taken_evenly_from_all_strata() -> None:
    found, pool = made()
    taken = found._across_strata(pool, np.arange(24), 7)
    assert sorted(np.bincount(pool.rows[taken, 0], minlength=3).tolist()) == [2, 2, 3]
    few = np.flatnonzero((pool.rows[:, 0] > 0) | (pool.rows[:, 2] == 0))[:18]  # two of the first stratum
    assert np.bincount(pool.rows[found._across_strata(pool, few, 10), 0], minlength=3).tolist() == [2, 4, 4]
    assert len(found._across_strata(pool, np.arange(24), 100)) == 24


def test_the_best_few_of_each_stratum_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "_ELITES", 2)
    found, pool = made()
    points = np.column_stack([np.arange(24.0)[::-1], np.zeros(24)])
    excess = np.zeros(24)
    excess[16:] = 1.0
    excess[20] = 0.5
    kept = found._elites(pool, points, excess)
    # of eight rows each: the last two, that is of least loss; of the last stratum the one least beyond, then the last
    assert sorted(kept.tolist()) == [6, 7, 14, 15, 20, 23]


def test_parents_are_the_best_and_some_of_each_stratum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "_PARENTS", 4)
    monkeypatch.setattr(auto, "_ELITES", 1)
    found, pool = made(Problem(cardinalities=np.array([3, 2, 4]), goals=LOSS, limits=(Limit(name="m"),), free=None))
    hope = np.arange(24.0)[:, None]
    sure = np.ones(24)
    chosen = found._parents(pool, hope, sure)
    assert set(chosen.tolist()) == {0, 1, 2, 3}  # without a stratum the elite is the best
    doubtful = sure.copy()
    doubtful[:3] = 0.2  # that limits hold: 0.3 beyond
    assert set(found._parents(pool, hope, doubtful).tolist()) == {3, 4, 5, 6}
    doubtful[:3] = 0.5
    assert set(found._parents(pool, hope, doubtful).tolist()) == {0, 1, 2, 3}
    spread, whole = made()
    both = np.column_stack([np.arange(24.0), np.arange(24.0)])
    picked = spread._parents(whole, both, sure)
    assert {0, 1, 2, 3} <= set(picked.tolist())
    assert len(picked) in (5, 6)  # and two of the elites, the best of each stratum
    assert whole.rows[picked, 0].tolist() == sorted(whole.rows[picked, 0].tolist())


def test_what_was_never_tried_of_a_decisive_variable_goes_first() -> None:
    found, _ = made()
    rows = np.array([[0, 0, 0], [1, 0, 0], [2, 1, 3]])
    assert found._neglected(np.array([[1, 1, 1]]), rows).tolist() == [1e6, 1, 1e6]
    assert found._neglected(rows, rows).tolist() == [1, 1, 1]


def test_a_known_value_is_conditioned_on() -> None:
    """Of two with covariance 1/2 and variance 1, knowing one leaves 3/4 of the other."""
    cov = np.array([[1.0, 0.5], [0.5, 1.0]])
    _condition(cov, 0)
    assert cov == pytest.approx(np.array([[0, 0], [0, 0.75]]), abs=1e-5)


def test_beliefs_are_free_costs_models_and_the_chance_of_limits() -> None:
    """Two expensive limits whose excess is so many deviations away: both hold with the product of the chances."""
    problem = Problem(
        cardinalities=np.array([3, 2, 4]),
        goals=(Goal(name="loss"), Goal(name="cost", free=True)),
        limits=(Limit(name="a"), Limit(name="b")),
        free=one_cost,
    )
    found, pool = made(problem)

    def model(mean: float, std: float) -> Any:
        return SimpleNamespace(
            predict_columns=lambda columns: (np.full(len(columns), mean), np.full(len(columns), std)),
            predict=lambda rows: (np.full(len(rows), mean), np.full(len(rows), std)),
        )

    found.models = {0: model(7.0, 0.5)}
    found._limit_models = {0: model(-1.0, 1.0), 1: model(1.0, 2.0)}
    found._fitted_to = found.history.trial_count
    index = np.array([0, 9])
    mean, std, chance = found._beliefs(pool, index)
    costs = one_cost(pool.rows[index])[0][:, 0]
    assert mean.tolist() == [[7.0, costs[0]], [7.0, costs[1]]]
    assert std.tolist() == [[0.5, 0.0]] * 2
    assert chance == pytest.approx(float(normal_cdf(np.array(1.0)) * normal_cdf(np.array(-0.5))))
    assert found.predict(pool.rows[index])[0].tolist() == mean.tolist()
    mean, std, excess = found.predict(pool.rows[index])
    assert (mean[:, 1].tolist(), std[:, 0].tolist(), excess.tolist()) == (costs.tolist(), [0.5] * 2, [[-1.0, 1.0]] * 2)


def test_trials_beyond_limits_rank_behind_all_others() -> None:
    problem = Problem(cardinalities=np.array([4]), goals=LOSS, limits=(Limit(name="m"),))
    found = Auto(problem, seed=0)
    found.tell([[0], [1]], [[3.0], [-5.0]], [[-1.0], [1.0]])
    assert found._ranked_objectives().tolist() == [[3.0], [-5.0 + 10 * 5 + 1]]


@pytest.mark.parametrize(("variables", "initial"), [(1, 8), (8, 10), (87, 29), (100, 30)])
def test_first_trials_are_eight_and_a_quarter_of_the_variables(variables: int, initial: int) -> None:
    assert Auto(Problem(cardinalities=np.full(variables, 2), goals=LOSS), seed=0).initial == initial
    assert Auto(Problem(cardinalities=np.full(variables, 2), goals=LOSS), seed=0, initial=3).initial == 3


def test_first_trials_with_a_prior_are_two_thirds_its_front() -> None:
    """The prior falls with the last variable, the cost rises with the first: its front is one row a width."""
    problem = Problem(
        cardinalities=np.array([3, 2, 4]),
        goals=COSTED,
        free=one_cost,
        prior=lambda rows: 10.0 - rows[:, 2] - rows[:, 0],
    )
    found, pool = made(problem)
    index = np.arange(24)
    front = found._prior_front(pool, index, 4)
    assert sorted(pool.rows[front].tolist()) == [[0, 0, 3], [1, 0, 3], [2, 0, 3]]
    points = found._by_prior(pool.costs[:3], pool.columns[:3])
    assert points[:, 1].tolist() == pool.costs[:3, 0].tolist()
    first = found._first(pool, 6)
    assert len(first) == 6
    assert {(0, 0, 3), (1, 0, 3), (2, 0, 3)} <= set(map(tuple, first.tolist()))
    found.tell(first[:5], np.column_stack([np.arange(5.0), one_cost(first[:5])[0]]))
    assert len(found._first(pool, 6)) == found.initial - 5  # only as many as are left of the first ones
    found.tell(first[5:], np.column_stack([np.arange(1.0), one_cost(first[5:])[0]]))


def test_a_pool_is_trimmed_to_its_best_and_the_elites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "_KEPT", 10)
    monkeypatch.setattr(auto, "_ELITES", 1)
    found, pool = made()
    found._breed(pool, generations=0)
    assert len(pool) in (5, 6, 7, 8)  # half of ten, and one of each of three strata
    monkeypatch.setattr(auto, "_KEPT", 24)
    other, whole = made()
    other._breed(whole, generations=0)
    assert len(whole) == 24


def test_a_grid_goes_in_strides_of_the_golden_section() -> None:
    """Of 24 rows int(24 / 1.618) = 14 shares a divisor with 24; 17 is the next that does not."""
    grid = Grid(SIMPLE, seed=0)
    assert (grid._size, grid._stride) == (24, 17)
    assert grid._order[0] == 0
    at = grid._at
    rows = grid._next(24)
    assert len(np.unique(rows, axis=0)) == 24
    assert (grid._visited, grid._at) == (24, at)
    # numbered with the decisive variable in front: eight rows of each of its values
    place, digits = at, []
    for column in grid._order[::-1]:
        place, digit = divmod(place, int(SIMPLE.cardinalities[column]))
        digits.append((int(column), digit))
    assert all(rows[0, column] == digit for column, digit in digits)
    assert Grid(Problem(cardinalities=np.array([1]), goals=LOSS), seed=0)._stride == 1


def test_without_a_prior_what_costs_more_scores_better() -> None:
    problem = Problem(
        cardinalities=np.array([3, 3]),
        goals=COSTED,
        limits=(Limit(name="m", free=True),),
        free=lambda rows: (10.0 ** rows[:, :1], rows[:, 1:2] / 2 - 1.0),
    )
    strategy = Proxy(problem, seed=0)
    rows = np.array([[2, 0], [1, 2]])
    points = strategy._points(rows, *problem.price(rows))
    # ln of cost and of 1 + violation, 0 of which counts as 1e-12
    assert points == pytest.approx(np.array([[-math.log(100) - math.log(1e-12), 100], [-math.log(10), 10]]))
