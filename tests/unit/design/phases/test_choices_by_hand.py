"""Whom the chooser, a strategy and a search by law consider, and how a run shares its budget: each by pencil."""

from __future__ import annotations

import dataclasses
import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from toy_run import SPACE, SPEC, metrics, two_bytes

from chipwise.design.limits import Constraint, Objective, parse_constraints
from chipwise.design.phases import by_law, reference_design, run_budget, task_evaluation
from chipwise.design.phases.by_law import LOSS, RowShapes, _children, _Feasible, _matrices, _neighbours, search_by_law
from chipwise.design.phases.choosing import Chooser, Observation, _spread
from chipwise.design.phases.halving import OVERHEAD, Halving, Rung
from chipwise.design.phases.pipeline import Search
from chipwise.design.phases.run_budget import MEASURING_S, MEASURING_SHARE, RunBudget, set_aside_s
from chipwise.design.phases.screening import screen
from chipwise.design.phases.strategy_proposer import StrategyProposer
from chipwise.design.run.budget_spec import Allowance
from chipwise.design.strategies.pareto import crowding, non_dominated
from chipwise.errors import SpecError
from chipwise.model.space.search_space import SearchSpace
from chipwise.training.laws.laws import shipped


def bare(**fields: Any) -> Chooser:
    """A chooser of which nothing is known but these fields."""
    found = object.__new__(Chooser)
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def made(space: SearchSpace = SPACE, spec: Any = SPEC, **changes: Any) -> Chooser:
    def costs(rows: np.ndarray) -> dict[str, np.ndarray]:
        size = space.values(rows, "d_model") * space.values(rows, "depth") * 1.0
        seconds = dict.fromkeys(("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99"), size * 1e-6)
        return {**seconds, "peak_memory": size, "parameters": size * 1000}

    screened = screen(space, costs, spec.limits, seed=0, draws=500)
    options = {"final": 9.0, "bytes_per_token": two_bytes, "seed": 0} | changes
    return Chooser(space, screened, costs, spec.goals, spec.limits, **options)


def test_points_are_spread_from_the_middle_on() -> None:
    """Columns count by their deviations, constant ones not: the middle, then what is farthest from all before."""
    columns = np.array([[0.0, 7.0, 0.0], [5.0, 7.0, 0.0], [10.0, 7.0, 0.0], [4.0, 7.0, 0.0], [0.0, 7.0, 8.0]])
    none = columns[:0]
    picks = _spread(columns, none, 3).tolist()
    deviation = columns.std(axis=0)
    scaled = columns[:, [0, 2]] / deviation[[0, 2]]
    assert picks[0] == int(((scaled - scaled.mean(axis=0)) ** 2).sum(axis=1).argmin()) == 3
    away = [min(math.dist(scaled[i], scaled[j]) for j in picks[:1]) for i in range(5)]
    assert picks[1] == int(np.argmax(away)) == 4
    away = [min(math.dist(scaled[i], scaled[j]) for j in picks[:2]) for i in range(5)]
    assert picks[2] == int(np.argmax(away)) == 2
    held = _spread(columns, columns[2:3], 2).tolist()  # no typical one first where others are held already
    assert held[0] == max(range(5), key=lambda i: math.dist(scaled[i], scaled[2]))
    assert len(set(held)) == 2


def test_orders_take_turns_and_sizes_are_apart_while_there_are_others() -> None:
    index = {"d_model": 0, "depth": 1}
    pool = np.array([[0, 0, 5], [0, 0, 6], [1, 0, 7], [1, 0, 8], [2, 1, 9]])
    chooser = bare(_space=SimpleNamespace(index=index))
    assert chooser._in_turns(pool, ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0]), 3) == [0, 4, 2]
    assert chooser._in_turns(pool, ([0, 1, 2, 3, 4],), 4) == [0, 2, 4, 1]
    assert chooser._in_turns(pool, ([0, 1, 2, 3, 4],), 9) == [0, 2, 4, 1, 3]
    assert chooser._in_turns(pool, ([3], [1]), 2) == [3, 1]


def test_a_run_of_one_model_begins_with_the_fastest_of_equally_good_sizes() -> None:
    """Here 1 % of the loss is worth taking 1.3 times as long, and no time is worth more than 1 % of the loss."""
    rows = np.arange(4)[:, None]

    def begins(losses: list[float], seconds: list[float], more: float | None = 0.01) -> int:
        known = {"tpot_p50": np.array(seconds)}
        told = {"law": lambda rows: np.array(losses), "_metrics": lambda rows: known}
        traded = None if more is None else ("tpot_p50", math.log1p(more))
        return bare(**told)._fastest_as_good(rows, traded)

    assert begins([1.0, 1.009, 1.009, 1.011], [9.0, 8.0, 7.0, 1.0]) == 2
    assert begins([1.009, 1.0, 1.009, 1.011], [8.5, 9.0, 8.2, 1.0]) == 1  # 1.1 times as long, for .9 %
    assert begins([1.0, 1.0, 1.009, 1.011], [9.0, 8.8, 8.7, 1.0]) == 1  # the same loss in any less time
    assert begins([1.0, 1.004, 1.009, 1.011], [9.0, 8.0, 7.9, 1.0]) == 1  # 1 % of the time is not worth .5 %
    assert begins([1.0, 1.009, 1.009, 1.011], [9.0, 8.0, 7.0, 1.0], more=None) == 0


def formats_space() -> tuple[SearchSpace, Any]:
    spec = dataclasses.replace(SPEC, space=dataclasses.replace(SPEC.space, weights=("int8", "int4", "fp32")))
    return SearchSpace(spec.space), spec


def test_forms_of_one_training_share_a_key_and_differ_in_what_serves_it() -> None:
    space, spec = formats_space()
    chooser = made(space, spec)
    column = space.index["weights"]
    row = chooser.pool[0].tolist()
    others = chooser.in_other_formats(row)
    assert sorted(other[column] for other in others.tolist()) == sorted({0, 1, 2} - {row[column]})
    keys = {chooser._architecture(other) for other in (row, *others.tolist())}
    assert keys == {tuple(0 if i == column else value for i, value in enumerate(row))}
    assert len(chooser.in_other_formats(row, ())) == 0
    # what is predicted beyond a limit is left out
    cap = float(chooser._metrics(np.array([row]))["tpot_p99"][0])
    limit = Constraint(metric="tpot_p99", op="<=", limit=cap / 2, text="")
    chooser._limits = (limit,)
    assert chooser.in_other_formats(row).shape == (0, len(row))
    assert chooser.better_served(row) == 1.0


def test_sizes_are_those_of_the_designs() -> None:
    """Parameters of the layers and of the head; a tied table is the head, else there are two."""
    for tied in (True, False):
        spec = dataclasses.replace(SPEC.space, tie_embeddings=(tied,))
        space = SearchSpace(spec)
        rows = space.sample(12, np.random.default_rng(0))
        designs = [space.design(row).arch for row in rows]

        def counted(asked: np.ndarray, rows: np.ndarray = rows, designs: Any = designs) -> dict[str, np.ndarray]:
            known = {tuple(row): arch.parameters() for row, arch in zip(rows.tolist(), designs, strict=True)}
            return {"parameters": np.array([float(known[tuple(row)]) for row in asked.tolist()])}

        layers, head = bare(_space=space, _metrics=counted)._sizes(rows)
        assert head.tolist() == [arch.vocab_size * arch.d_model for arch in designs]
        tables = 1 if tied else 2
        expected = [arch.parameters() - tables * arch.vocab_size * arch.d_model for arch in designs]
        assert layers.tolist() == expected
    none = bare(_space=space, _metrics=lambda rows: {"parameters": np.zeros(len(rows))})
    assert none._sizes(rows)[0].tolist() == [1.0] * 12


def test_candidates_are_the_pool_and_children_of_the_best_without_what_is_taken(monkeypatch) -> None:
    chooser = made()
    rng = np.random.default_rng(0)
    taken = chooser.pool[:3].tolist()
    left = chooser._candidates([], taken, rng)
    assert len(left) == len(chooser.pool) - 3
    assert not {tuple(row) for row in left.tolist()} & {tuple(row) for row in taken}
    asked: list[np.ndarray] = []
    monkeypatch.setattr("chipwise.design.phases.choosing.mutate", lambda space, rows, rng: asked.append(rows) or rows)
    monkeypatch.setattr("chipwise.design.phases.choosing.PARENTS", 2)
    rows = chooser.pool[[0, 5, 9, 12]]
    losses, spent = (1.0, 2.0, 3.0, 0.5), (9.0, 9.0, 9.0, 1.0)  # the longest trainings first, then the best
    seen = [Observation(row.tolist(), s, 1000, loss) for row, s, loss in zip(rows, spent, losses, strict=True)]
    chooser._candidates(seen, taken, rng)
    parents, counts = np.unique(asked[0], axis=0, return_counts=True)
    assert sorted(map(tuple, parents.tolist())) == sorted(map(tuple, rows[:2].tolist()))
    assert counts.tolist() == [150, 150]


def test_a_pool_keeps_the_limits_where_anything_does() -> None:
    chooser = made()
    assert (metrics(chooser.pool)["tpot_p99"] <= 300e-6).all()
    assert chooser.pool.tolist() == sorted(chooser.pool.tolist(), key=chooser.pool.tolist().index)
    assert len(np.unique(chooser.pool, axis=0)) == len(chooser.pool)


class Told:
    """A strategy that proposes rows of a list and records the results it receives."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows, self.told = rows, []

    def ask(self, count: int) -> np.ndarray:
        found, self.rows = self.rows[:count], self.rows[count:]
        return found

    def tell(self, rows: np.ndarray, objectives: Any, violations: Any = None) -> None:
        self.told.append((rows.tolist(), None if objectives is None else np.asarray(objectives).tolist()))


def proposer(monkeypatch: pytest.MonkeyPatch, rows: np.ndarray) -> tuple[StrategyProposer, Told, Chooser]:
    chooser, strategy = made(), Told(rows)
    found = object.__new__(StrategyProposer)
    found._name, found._chooser, found._seed = "told", chooser, 0
    seeds: list[int] = []
    monkeypatch.setattr(StrategyProposer, "_make", lambda self, seed: seeds.append(seed) or strategy)
    strategy.seeds = seeds
    return found, strategy, chooser


def test_a_strategy_is_told_first_trainings_and_failures(monkeypatch) -> None:
    """The shortest training of each taken row, with its free goals in their own direction; taken rows without one."""
    found, strategy, chooser = proposer(monkeypatch, np.zeros((0, len(SPACE.genes)), np.int64))
    one, other, lost = (tuple(row) for row in chooser.pool[:3].tolist())
    away = chooser.pool[7].tolist()
    seen = [
        Observation(one, 3.0, 1, 5.0),
        Observation(one, 1.0, 1, 6.0),
        Observation(other, 1.0, 1, 7.0),
        Observation(away, 1.0, 1, 9.0),
    ]
    found._replay(strategy, seen, {one, other, lost})
    (rows, values), (failed, nothing) = strategy.told
    assert rows == [list(one), list(other)]
    assert [value[0] for value in values] == [6.0, 7.0]
    goals = chooser.problem.goals
    costs = metrics(np.array(rows))
    for column, goal in enumerate(goals[1:], 1):
        assert [value[column] for value in values] == pytest.approx(costs[goal.name].tolist())
    assert (failed, nothing) == ([list(lost)], None)


def test_a_strategys_proposals_are_within_the_limits_new_and_completed_from_the_pool(monkeypatch) -> None:
    within = made().pool
    every = SPACE.canonical(np.array(list(itertools.product(*map(range, SPACE.cardinalities)))))
    beyond = every[metrics(every)["tpot_p99"] > 300e-6][:1]
    rows = np.vstack([within[:1], beyond, within[1:2], within[:1], within[2:4]])
    found, strategy, chooser = proposer(monkeypatch, rows)
    asked = found(3, [], [within[1].tolist()])
    assert asked.tolist() == within[[0, 2, 3]].tolist()
    assert strategy.seeds == [1000]
    assert (beyond.tolist(), None) in strategy.told
    few, _, _ = proposer(monkeypatch, within[:1])
    completed = few(4, [], [])
    assert completed[0].tolist() == within[0].tolist()
    assert len(np.unique(completed, axis=0)) == 4
    assert {tuple(row) for row in completed.tolist()} <= {tuple(row) for row in chooser.pool.tolist()}


LAWS = SearchSpace(
    dataclasses.replace(SPEC.space, d_model=(256, 512, 768), depth=(2, 4), vocab_size=(1000, 2000), max_tokens=64)
)


def costed(space: SearchSpace) -> Any:
    shapes = RowShapes(space)

    def known(rows: np.ndarray) -> dict[str, np.ndarray]:
        found = shapes(rows)
        return {"parameters": np.asarray(found.most), "tpot_p50": np.asarray(found.least) * 1e-9}

    return known


def test_neighbours_differ_in_one_choice_or_step_two_choices_apart() -> None:
    row = LAWS.sample(1, np.random.default_rng(3))[0]
    found = {tuple(each) for each in _neighbours(LAWS, row).tolist()}
    expected = [row]
    for columns in [*([i] for i in range(len(row))), *map(list, LAWS.columns.values())]:
        for value in range(LAWS.cardinalities[columns[0]]):
            changed = row.copy()
            changed[columns] = value
            expected.append(changed)
    for up, down in itertools.product(map(list, LAWS.columns.values()), repeat=2):
        changed = row.copy()
        changed[up] += 1
        changed[down] -= 1
        expected.append(np.clip(changed, 0, LAWS.cardinalities - 1))
    assert found == {tuple(each) for each in LAWS.canonical(np.array(expected)).tolist()}
    assert tuple(LAWS.canonical(row[None])[0].tolist()) in found


def test_children_are_mixed_stepped_set_alike_or_drawn_anew() -> None:
    """Of one parent with itself: nothing new by mixing, steps of one, one choice for all layers, and a few genes."""
    rng = np.random.default_rng(0)
    parent = LAWS.canonical(np.zeros((1, len(LAWS.cardinalities)), np.int64))
    born = _children(LAWS, parent, 400, rng)
    assert len(np.unique(born, axis=0)) == len(born) <= 400
    assert (born == LAWS.canonical(born)).all()
    assert (born < LAWS.cardinalities).all()
    assert (born >= 0).all()
    assert any((row == parent[0]).all() for row in born)
    far = (np.abs(born - parent) > 1).any(axis=1)
    assert far.any()
    two = LAWS.canonical(np.vstack([np.zeros_like(parent), LAWS.cardinalities[None] - 1]))
    between = _children(LAWS, two, 400, rng)
    ends = (between == two[0]) | (between == two[1])
    assert ends.all(axis=1).sum() > 30  # mixtures of both
    many = LAWS.sample(300, rng)  # of which hardly two are alike
    assert 30 < len(_children(LAWS, many, 40, rng)) <= 40
    assert len(_children(LAWS, many, 3, rng)) == 0


def test_fronts_and_parents_of_a_search_by_law(monkeypatch) -> None:
    """The front and the best two by loss; of a long front the ends and what is far from its neighbours."""
    monkeypatch.setattr(by_law, "PARENTS", 4)
    rng = np.random.default_rng(0)
    loss = np.sort(rng.random(30))
    cost = np.r_[10.0, np.sort(rng.random(28))[::-1], 0.0]
    cost[[1, 2, 3]] = 11.0  # nothing beside the best loss, yet the next best by it
    held = _Feasible(np.arange(30)[:, None], {LOSS: loss, "cost": cost})
    goals = {LOSS: 1.0, "cost": 1.0}
    kept = held.front(goals)
    points = np.column_stack([loss, cost])
    expected = set(np.flatnonzero(non_dominated(points)).tolist()) | {0, 1, 2, 3}
    assert set(kept.rows[:, 0].tolist()) == expected
    assert kept.metrics[LOSS].tolist() == loss[kept.rows[:, 0]].tolist()
    parents = held.parents(goals)[:, 0].tolist()
    front = np.flatnonzero(non_dominated(points))
    far = front[np.argsort(-crowding(points[front]), kind="stable")[:2]]
    assert sorted(parents) == sorted({0, 1, *far.tolist()})
    more = held.front({LOSS: 1.0, "cost": -1.0})  # a metric that is to grow
    assert set(more.rows[:, 0].tolist()) == {0, 1, 2, 3}


def test_joined_rows_are_distinct_and_keep_their_metrics() -> None:
    one = _Feasible(np.array([[1], [2]]), {LOSS: np.array([10.0, 20.0])})
    other = _Feasible(np.array([[2], [3]]), {LOSS: np.array([20.0, 30.0])})
    joined = one.joined(other)
    assert dict(zip(joined.rows[:, 0].tolist(), joined.metrics[LOSS].tolist(), strict=True)) == {
        1: 10.0,
        2: 20.0,
        3: 30.0,
    }


def test_what_a_search_by_law_says_of_its_answer() -> None:
    """Every priced row is counted; rows come by loss, with the law's interval, and vocabularies get a note."""
    counted = []
    known = costed(LAWS)

    def spied(rows: np.ndarray) -> dict[str, np.ndarray]:
        counted.append(len(rows))
        return known(rows)

    found = search_by_law(
        LAWS, spied, shipped(), tokens=1e10, objectives=[Objective(metric="parameters", direction="minimize")], seed=0,
        draws=200,
    )  # fmt: skip
    assert found.priced == sum(counted)
    assert found.tokens == 1e10
    assert (np.diff(found.metrics[LOSS]) >= 0).all()
    value, low, high = shipped().expect(RowShapes(LAWS)(found.rows), 1e10)
    assert found.metrics[LOSS] == pytest.approx(value)
    assert (found.low.tolist(), found.high.tolist()) == (low.tolist(), high.tolist())
    whole = found.loss(2)
    assert (whole.value, whole.low, whole.high) == pytest.approx((value[2], low[2], high[2]))
    last = len(found.rows) - 1
    assert found.design() == found.design(0) != found.design(last)
    assert found.loss() == found.loss(0)
    worse = found.difference(found.design(last))
    assert worse.value == pytest.approx(value[0] - value[last])
    assert worse.value < 0 == found.difference(found.design(last), last).value
    turned = dataclasses.replace(found, rows=found.rows[[last, 0]])
    assert turned.difference(found.design(last)).value == 0 > turned.difference(found.design(last), 1).value
    assert any("a vocabulary's effect" in note for note in found.notes)
    one = SearchSpace(dataclasses.replace(LAWS.spec, vocab_size=(1000,)))
    alone = search_by_law(one, costed(one), shipped(), tokens=1e10, seed=0, draws=200)
    assert not any("vocabulary" in note for note in alone.notes)
    assert alone.notes == tuple(shipped().notes(RowShapes(one)(alone.rows[:1]), 1e10))


@pytest.mark.parametrize(
    ("kind", "matrices"), [("swiglu", (3, 3)), ("relu", (2, 2)), ("gelu", (2, 2)), ("swiglu-8x2", (6, 24))]
)
def test_matrices_of_a_feed_forward(kind: str, matrices: tuple[float, float]) -> None:
    assert _matrices(kind) == matrices


def item(number: int, **fields: Any) -> Any:
    known = {"alive": True, "rungs": (1,), "row": (number,), "quality": 1.0, "is_reference": False, "format_of": None}
    return SimpleNamespace(number=number, **(known | fields))


def halving(**fields: Any) -> Halving:
    found = object.__new__(Halving)
    found._penalty_factor = lambda each: 1.0
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def test_the_best_reference_is_the_one_of_fewest_bits_as_they_count() -> None:
    def after(loss: float | None) -> Any:
        return lambda rung: None if loss is None else SimpleNamespace(quantised_loss=loss)

    items = {
        0: item(0, after=after(2.0)),
        1: item(1, after=after(1.5)),
        2: item(2, after=after(1.0), alive=False),
        3: item(3, after=after(None)),
    }
    found = halving(_trials=items, _penalty_factor=lambda each: {0: 1.0, 1: 1.5}.get(each.number, 1.0))
    assert found.best_reference(list(items.values())).number == 0
    found._penalty_factor = lambda each: 1.0
    assert found.best_reference(list(items.values())).number == 1
    assert found.best_reference([items[2], items[3]]) is None


def test_before_a_model_longer_trainings_then_better_ones_come_first(monkeypatch) -> None:
    monkeypatch.setattr(Halving, "observations", lambda self: [None] * 2)
    items = [
        item(0, quality=1.0),
        item(1, quality=3.0, rungs=(1, 2)),
        item(2, quality=2.0, rungs=(1, 2)),
        item(3, row=None),
    ]
    found = halving()
    assert [each.number for each in found.ranked(items)] == [2, 1, 0]
    assert found._counted(item(5, quality=None)) == math.inf
    found._penalty_factor = lambda each: 3.0
    assert found._counted(item(5, quality=2.0)) == 6.0


def test_trainings_that_the_budget_allows() -> None:
    """Of 100 left with 30 for later ones, each of 20 at an overhead of 1.25: 50 are left, two trainings."""
    allowance = Allowance(unit="cpu", total=1000.0, final=40.0, whole=True)
    plan = (Rung(budget=10.0, count=9), Rung(budget=20.0, count=4), Rung(budget=40.0, count=2))
    found = halving(_allowance=allowance, _plan=plan, _left=lambda: 100.0, _used=0.0, _trained=0.0)
    assert found.overhead == OVERHEAD
    found._used, found._trained = 48.0, 40.0  # (48 + 1.3 · 40) / (40 + 40)
    assert found.overhead == pytest.approx(1.25)
    assert found._affordable(20.0, 30.0) == 2
    assert found._affordable(50.0, 30.0) == 1
    assert found._promotions(1) == 4 * 10 + 2 * 20
    assert found._promotions(2) == 2 * 20
    assert found._promotions(3) == 0
    found._left = lambda: math.inf
    assert found._affordable(20.0, 30.0) > 1e6
    found._allowance = dataclasses.replace(allowance, whole=False)
    assert found.overhead == 1.0


def test_spare_candidates_are_alive_trained_and_within_the_limits() -> None:
    def spare(number: int, *, final: bool = False, **fields: Any) -> Any:
        within = fields.pop("within", True)
        return item(number, notes=SimpleNamespace(within=within), after=lambda rung: 1 if final else None, **fields)

    items = [
        spare(0),
        spare(1, final=True),
        spare(2, alive=False),
        spare(3, rungs=()),
        spare(4, within=None),
        spare(5, within=False),
        spare(6),
    ]
    found = halving(_trials=SimpleNamespace(all=lambda: items), _plan=(1, 2, 3))
    found.ranked = lambda candidates: list(candidates)
    assert [each.number for each in found.spare([items[0]])] == [1, 6]
    assert [each.number for each in found.spare([])] == [1, 0, 6]


def search(**fields: Any) -> Search:
    found = object.__new__(Search)
    found.spec, found.space, found.target = SPEC, SPACE, None
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def budgeted(
    monkeypatch: pytest.MonkeyPatch, *, whole: bool, left: float, supernet_s: float = 0.0, **memory: Any
) -> RunBudget:
    """A budget of which so much is left; a full training takes 30."""
    monkeypatch.setattr(RunBudget, "left", left)
    monkeypatch.setattr(RunBudget, "supernet_s", supernet_s)
    found = RunBudget(SPEC, SimpleNamespace(study=SimpleNamespace(memory=memory)), SimpleNamespace())
    found.allowance = Allowance(unit="cpu", total=1000.0, final=30.0, whole=whole)
    return found


@pytest.mark.parametrize(
    ("whole", "done", "training"),
    [
        (False, (), 600.0),
        (True, (), 600.0 / OVERHEAD),
        (False, (0.0,), 600.0 - 30.0),  # the reference design's full training
        (False, (10.0, 4.0), 600.0 - 20.0),  # what the longest trained one still needs
        (False, (40.0,), 600.0),
    ],
)
def test_the_rest_of_a_budget_is_for_new_candidates(monkeypatch, whole: bool, done: Any, training: float) -> None:
    found = budgeted(monkeypatch, whole=whole, left=600.0)
    monkeypatch.setattr(run_budget, "charge_of", lambda each, allowance: each)
    asked: list[float] = []

    def planned(allowance: Any, training: float, *, least_share: float) -> tuple[Rung, ...]:
        asked.append(training)
        return (Rung(budget=3.0, count=4), Rung(budget=30.0, count=2))

    monkeypatch.setattr(run_budget, "plan_rungs", planned)
    found._plan_of_rest(done)
    waiting = sum(each == 0.0 for each in done)
    # and, but for the best of them, short trainings of those that had none
    assert asked == pytest.approx([training, training - 3.0 * max(0, waiting - 1)])


def test_a_supernet_takes_its_part_until_it_is_done(monkeypatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(run_budget, "charge_of", lambda each, allowance: each)
    monkeypatch.setattr(
        run_budget, "plan_rungs", lambda a, t, *, least_share: asked.append(t) or (Rung(budget=30.0, count=2),)
    )
    monkeypatch.setattr(run_budget, "planned_cpu_s", lambda seconds: 2 * seconds)
    budgeted(monkeypatch, whole=False, left=600.0, supernet_s=50.0)._plan_of_rest((0.0, 0.0, 0.0))
    assert asked == pytest.approx([500.0 - 30.0] * 2)  # one rung: no short trainings
    asked.clear()
    budgeted(monkeypatch, whole=False, left=600.0, supernet_s=50.0, supernet={"done": True})._plan_of_rest(())
    assert asked == [600.0, 600.0]


def test_choosing_the_format_of_each_matrix_is_set_aside_too(monkeypatch) -> None:
    found = budgeted(monkeypatch, whole=True, left=0.0)
    for chosen in (False, True):
        monkeypatch.setattr(run_budget, "chosen_by_matrix", lambda spec, target, chosen=chosen: chosen)
        choosing_s = task_evaluation.CONTENDERS * run_budget.CPU_S if chosen else 0.0
        found.set_aside(None, {})
        assert found.left_for_finals_s == pytest.approx(MEASURING_S + MEASURING_SHARE * 1000.0 + choosing_s)


def test_less_is_set_aside_where_there_is_one_finalist(monkeypatch) -> None:
    """Of 1,000 s: 5 and 1.5 % for measuring it, in place of 4 %, and 4 and half a per cent for the end of the run."""
    found = budgeted(monkeypatch, whole=True, left=0.0)
    found.allowance = dataclasses.replace(found.allowance, alone=True)
    monkeypatch.setattr(run_budget, "chosen_by_matrix", lambda spec, target: False)
    found.set_aside(None, {})
    assert found.left_for_finals_s == pytest.approx(20.0)
    assert set_aside_s(found.allowance) == pytest.approx(20.0 + 9.0)
    assert set_aside_s(dataclasses.replace(found.allowance, alone=False)) == pytest.approx(45.0 + 9.0)


def test_a_plan_that_was_made_stays(monkeypatch) -> None:
    found = budgeted(monkeypatch, whole=True, left=0.0, plan=[[3.0, 4], [9.0, 2]])
    assert found.plan(()) == (Rung(budget=3.0, count=4), Rung(budget=9.0, count=2))
    with pytest.raises(SpecError):
        budgeted(monkeypatch, whole=True, left=0.0)._plan_of_rest(())


def test_what_is_shown_of_a_search() -> None:
    """Trainings, measurements and failures; the best is alive."""
    design = SPACE.design(SPACE.sample(1, np.random.default_rng(0))[0])
    items = [
        item(0, quality=2.0, measured=1, design=design, trial=SimpleNamespace(state="running")),
        item(1, quality=1.0, measured=None, alive=False, design=None, trial=SimpleNamespace(state="failed")),
        item(2, quality=1.5, measured=None, design=design, trial=SimpleNamespace(state="running")),
        item(3, quality=None, rungs=(), measured=None, design=None, trial=SimpleNamespace(state="running")),
    ]
    found = search(status=SimpleNamespace(best_loss=None, best=None), trials=SimpleNamespace(all=lambda: items))
    found._show = lambda: None
    found._show_counts()
    status = found.status
    assert (status.trained, status.measured, status.failed, status.best_loss) == (3, 1, 1, 1.5)
    details: list[str] = []
    found._detail = details.append
    found._show_trainings({7: 0.5, 3: 0.257})
    assert status.training == 2
    assert details == ["trial 3 26 %, trial 7 50 %"]
    assert found._candidates() == items


def test_an_earlier_reference_design_is_the_largest_that_was_trained_in_full() -> None:
    def earlier(number: int, size: int, **fields: Any) -> Any:
        arch = SimpleNamespace(parameters=lambda: size)
        known = {"is_reference": True, "trained_to": lambda rung: rung <= fields.pop("rung", 2)}
        return item(number, design=SimpleNamespace(arch=arch), **(known | fields))

    items = [
        earlier(0, 10),
        earlier(1, 30),
        earlier(2, 90, is_reference=False),
        earlier(3, 90, alive=False),
        earlier(4, 90, trained_to=lambda rung: rung < 2),
        earlier(5, 91),
    ]
    ready = SimpleNamespace(plan=(1, 2, 3), measurer=SimpleNamespace(within_limits=lambda each: each.number != 5))
    found = search(trials=SimpleNamespace(all=lambda: items))
    assert found._earlier_reference(ready).number == 1
    found.trials = SimpleNamespace(all=lambda: items[2:])
    assert found._earlier_reference(ready) is None


def test_trials_are_closed_with_their_values_or_set_aside() -> None:
    closed: list[Any] = []
    found = search(
        trials=SimpleNamespace(fail=lambda number, reason: closed.append((number, reason))),
        study=SimpleNamespace(finish=lambda number, values: closed.append((number, values))),
    )
    found._close(item(3, loss=None))
    metric = SPEC.task_settings.metric
    known = {goal.metric: 5.0 for goal in SPEC.goals if goal.metric != metric.name}
    found._close(item(4, loss=2.0, known=known))
    values = tuple(metric.shown(2.0) if goal.metric == metric.name else 5.0 for goal in SPEC.goals)
    assert closed == [(3, "set aside before training"), (4, values)]


@pytest.mark.parametrize(
    ("left", "anew", "trained"), [(2.5, False, True), (1.5, False, False), (1.5, True, True), (0.5, False, False)]
)
def test_reference_designs_are_trained_first_where_the_budget_holds_all_that_need_it(
    left: float, anew: bool, trained: bool
) -> None:
    """Of four, one failed and one was trained: two need a second each. A search that has begun trains them or none."""

    def reference(number: int, **fields: Any) -> Any:
        known = {"is_reference": True, "trained_to": lambda rung: fields.get("done", False), "after": lambda rung: None}
        return item(number, **(known | fields))

    references = [reference(0), reference(1), reference(2, alive=False), reference(3, done=True)]
    begun = item(4, rungs=() if anew else (1,), trained_to=lambda rung: True)
    plan = (Rung(budget=1.0, count=1), Rung(budget=9.0, count=1))
    asked: list[Any] = []
    found = halving(
        _plan=plan, _workers=1, _on_phase=lambda name: None, _left=lambda: left, _used=0.0, _trained=0.0,
        _allowance=Allowance(unit="cpu", total=100.0, final=9.0, whole=False),
        _trials=SimpleNamespace(all=lambda: [begun]),
    )  # fmt: skip
    found.train = lambda items, rung: asked.append([each.number for each in items])
    found.best_reference = lambda items: None
    found._run = lambda jobs: None
    found.observations = lambda: []
    found._propose = lambda count, seen, taken: np.zeros((0, 2), np.int64)
    if anew:
        begun.alive = False
    found.explore(references)
    assert asked == ([[0, 1, 2, 3]] if trained else [])


def test_full_training_of_the_reference_goes_beside_the_first_batch_or_alone() -> None:
    """Nothing is left to propose: the reference still has its full training where the budget holds it."""
    for left, wanted in ((9.5, [[7]]), (8.5, [])):
        reference = item(7, is_reference=True, trained_to=lambda rung: rung == 0)
        candidate = item(1, trained_to=lambda rung: True)
        plan = (Rung(budget=1.0, count=1), Rung(budget=9.0, count=1))
        ran: list[list[int]] = []
        found = halving(
            _plan=plan, _workers=1, _on_phase=lambda name: None, _left=lambda left=left: left, _used=0.0, _trained=0.0,
            _allowance=Allowance(unit="cpu", total=100.0, final=9.0, whole=False),
            _trials=SimpleNamespace(all=lambda candidate=candidate: [candidate]),
        )  # fmt: skip
        found.train = lambda items, rung: None
        found.best_reference = lambda items, reference=reference: reference
        found._run = lambda jobs, ran=ran: ran.append([job.candidate.number for job in jobs])
        found.explore([reference])
        assert ran == wanted


def test_reference_designs_are_tried_in_the_order_of_what_their_training_fills(monkeypatch) -> None:
    """The largest that training fills first, of equals the fastest; then those too large, the smallest first; last what
    pays for a soft limit. Another family's, and what is beyond a hard limit, are left out."""
    soft = parse_constraints({"tpot_p99": {"limit": "<= 100 us", "penalty": 0.5}, "tpot_p50": "<= 1 s"})
    asked = [  # name, parameters, tokens' seconds, family
        ("small", 10, 50e-6, "a"), ("large", 40, 90e-6, "a"), ("large but slower", 40, 95e-6, "a"),
        ("too large", 60, 60e-6, "a"), ("far too large", 90, 60e-6, "a"), ("pays", 45, 150e-6, "a"),
        ("pays and is small", 20, 150e-6, "a"), ("other", 30, 50e-6, "b"), ("out of reach", 30, 2.0, "a"),
    ]  # fmt: skip
    known = {name: (size, seconds, family) for name, size, seconds, family in asked}
    spec = SimpleNamespace(
        limits=soft,
        allowance=None,
        space=None,
        confidence_share=0.9,
        task_settings=SimpleNamespace(
            references=lambda space: [{"name": name, "depth": 1, "layers": [name]} for name in known],
            family=lambda row: known[row["name"]][2],
            latency_metric="tpot_p50",
        ),
    )
    monkeypatch.setattr(reference_design, "most_parameters", lambda allowance, *, slower: 50.0)
    monkeypatch.setattr(
        reference_design,
        "design_of",
        lambda row, **options: SimpleNamespace(
            name=row["name"], arch=SimpleNamespace(parameters=lambda: known[row["name"]][0], layers=row["layers"])
        ),
    )

    def predict(design: Any) -> dict[str, tuple[float, float, float]]:
        seconds = known[design.name][1]
        return dict.fromkeys(("tpot_p50", "tpot_p99"), (seconds, seconds, seconds))

    for measures in (True, False):
        target = SimpleNamespace(measures=measures, limits=(), predict=predict)
        found = list(reference_design._largest_first(spec, target, "a"))  # type: ignore[arg-type]
        assert [row["name"] for row, _ in found] == [
            *("large", "large but slower", "small", "too large", "far too large", "pays", "pays and is small")
        ]
        assert found[0][1] == predict(SimpleNamespace(name="large"))

    predicted: list[str] = []
    spec.limits = ()  # without soft limits only designs as large as the first one are predicted

    def counted(design: Any) -> dict[str, tuple[float, float, float]]:
        predicted.append(design.name)
        return predict(design)

    target = SimpleNamespace(measures=True, limits=(), predict=counted)
    assert next(reference_design._largest_first(spec, target, "a"))[0]["name"] == "pays"  # type: ignore[arg-type]
    assert set(predicted) == {"pays"}


def test_no_deeper_reference_design_is_predicted_where_the_shallowest_is_too_slow(monkeypatch) -> None:
    """A layer takes 10 us, 30 us if it is wide, and the limit is 25 us: of the wide designs one is predicted."""
    rows = [
        {"depth": depth, "layers": [wide] * depth, "vocab": vocab}
        for wide in ("narrow", "wide")
        for depth in (1, 2, 3, 4)
        for vocab in (256, 512)
    ]
    asked = SimpleNamespace(references=lambda space: rows, family=lambda row: row["vocab"], latency_metric="tpot_p50")
    limits = parse_constraints({"tpot_p50": "<= 25 us"})
    spec = SimpleNamespace(limits=limits, allowance=None, space=None, task_settings=asked)

    def design_of(row: dict[str, Any], **options: object) -> SimpleNamespace:
        size = len(row["layers"]) * (2 if row["layers"][0] == "wide" else 1)
        return SimpleNamespace(row=row, arch=SimpleNamespace(parameters=lambda: size, layers=row["layers"]))

    monkeypatch.setattr(reference_design, "most_parameters", lambda allowance, *, slower: 100.0)
    monkeypatch.setattr(reference_design, "design_of", design_of)
    predicted: list[tuple[str, int]] = []

    def predict(design: Any) -> dict[str, tuple[float, float, float]]:
        layers = design.row["layers"]
        predicted.append((layers[0], len(layers)))
        seconds = len(layers) * (30e-6 if layers[0] == "wide" else 10e-6)
        return {"tpot_p50": (seconds, seconds, seconds)}

    target = SimpleNamespace(measures=True, limits=(), predict=predict)
    found = [row for row, _ in reference_design._largest_first(spec, target, 256)]  # type: ignore[arg-type]
    assert [(row["layers"][0], row["depth"]) for row in found] == [("narrow", 2), ("narrow", 1)]
    assert {size for size in predicted if size[0] == "wide"} == {("wide", 1)}
