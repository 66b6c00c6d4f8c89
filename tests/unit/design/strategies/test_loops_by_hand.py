"""Penalties, fidelities, evaluations, outcomes and inputs of other libraries' samplers, by pencil."""

from __future__ import annotations

import math
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chipwise.core.workers import Event
from chipwise.design.strategies import executors, optimise
from chipwise.design.strategies.executors import InProcess, Outcome, Processes, attempt, executor
from chipwise.design.strategies.optimise import HeartbeatMonitor, _Loop, _variable
from chipwise.design.strategies.references import reference_to
from chipwise.design.strategies.strategy import Goal, Limit, Problem
from chipwise.design.strategies.study import Trial
from chipwise.design.strategies.wrappers import FullTrials, SoftLimits, at_share, designs
from chipwise.errors import InputError


class Inner:
    """A strategy that records its results and proposes given rows."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.told = problem, []
        self.rows = np.array([[1, 0], [2, 1]])

    def ask(self, count: int) -> np.ndarray:
        return self.rows[:count]

    def tell(self, rows: Any, objectives: Any, violations: Any = None) -> None:
        listed = [None if each is None else np.asarray(each).tolist() for each in (rows, objectives, violations)]
        self.told.append(tuple(listed))


def free(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A cost of 10 and the row; violations of the first limit by the row less 1, of the second by 2 less the row."""
    return 10.0 + rows[:, :1], np.column_stack([rows[:, 0] - 1.0, 2.0 - rows[:, 0]])


def limited(*goals: Goal) -> Problem:
    limits = (Limit(name="soft", free=True, penalty=0.5), Limit(name="hard", free=True))
    return Problem(cardinalities=np.array([4, 2]), goals=goals, limits=limits, free=free)


@pytest.mark.parametrize(("direction", "values"), [("minimize", [-1.0, 6.0]), ("maximize", [-3.0, 2.0])])
def test_soft_limits_worsen_the_first_objective(direction: Any, values: list[float]) -> None:
    """A violation of 1 by half of the size: -2 becomes -1 or -3, 4 becomes 6 or 2. Hard limits are passed on alone."""
    wrapped = SoftLimits(limited(Goal(name="loss", direction=direction), Goal(name="cost", free=True)), Inner)
    inner: Any = wrapped._inner
    assert [limit.name for limit in inner.problem.limits] == ["hard"]
    rows = [[2, 0], [2, 1]]
    wrapped.tell(rows, [[-2.0, 12.0], [4.0, 12.0]])
    wrapped.tell(rows, [[-2.0, 12.0], [4.0, 12.0]], [[-3.0, 0.25], [2.0, 0.5]])
    wrapped.tell(rows, None)
    priced, given, failed = inner.told
    assert priced == (rows, [[values[0], 12.0], [values[1], 12.0]], [[0.0], [0.0]])
    twice = 4.0 + (4.0 if direction == "minimize" else -4.0)
    assert given == (rows, [[-2.0, 12.0], [twice, 12.0]], [[0.25], [0.5]])
    assert failed == (rows, None, None)
    costs, violations = inner.problem.price(np.array([[3, 0]]))
    assert (costs.tolist(), violations.tolist()) == ([[13.0]], [[-1.0]])
    assert wrapped.ask(1).tolist() == [[1, 0]]


def test_a_free_first_objective_is_penalised_where_it_is_priced() -> None:
    wrapped = SoftLimits(limited(Goal(name="cost", free=True), Goal(name="loss")), Inner)
    inner: Any = wrapped._inner
    costs, violations = inner.problem.price(np.array([[3, 0], [1, 0]]))
    assert (costs.tolist(), violations.tolist()) == ([[13.0 * 2], [11.0]], [[-1.0], [1.0]])
    trials = (Limit(name="soft", penalty=0.5),)
    with pytest.raises(InputError, match="the first objective, cost, is computed without trials"):
        SoftLimits(
            Problem(cardinalities=np.array([2]), goals=(Goal(name="cost", free=True),), limits=trials, free=free), Inner
        )
    dear = SoftLimits(Problem(cardinalities=np.array([2]), goals=(Goal(name="loss"),), limits=trials), Inner)
    with pytest.raises(InputError, match="pass the violations of soft"):
        dear.tell([[0]], [[1.0]])


SHARED = Problem(
    cardinalities=np.array([4, 3, 3]),
    goals=(Goal(name="loss"), Goal(name="cost", free=True)),
    limits=(Limit(name="a", free=True),),
    free=lambda rows: (1.0 * rows.sum(axis=1), rows[:, 2] - 1.0),
    prior=lambda rows: 100.0 * rows[:, 2] + rows[:, 0],
    active=lambda rows: np.column_stack([rows[:, 2] > 0, np.ones(len(rows), bool), np.ones(len(rows), bool)]),
    canonical=lambda rows: np.where(rows == 3, 2, rows),
    kinds=("x", "y", "share"),
    neighbours=lambda rows, rng: rows + 1,
    sample=lambda count, rng: np.full((count, 3), 1),
    fidelities=(0.1, 0.5, 1.0),
)


@pytest.mark.parametrize("share", [0, 2])
def test_designs_are_the_problem_at_one_fidelity(share: int) -> None:
    found, rows = designs(SHARED, share), np.array([[2, 1], [3, 0]])
    assert (found.cardinalities.tolist(), found.kinds, found.fidelities) == ([4, 3], ("x", "y"), ())
    assert [goal.name for goal in found.goals] == ["loss", "cost"]
    costs, over = found.price(rows)
    assert (costs[:, 0].tolist(), over[:, 0].tolist()) == ([3.0 + share, 3.0 + share], [share - 1.0] * 2)
    assert found.prior_values(rows).tolist() == [100.0 * share + 2, 100.0 * share + 3]
    assert found.active is not None
    assert found.active(rows).tolist() == [[share > 0, True]] * 2
    assert found.canonicalise(rows).tolist() == [[2, 1], [2, 0]]
    assert found.neighbours is not None
    assert found.neighbours(rows, np.random.default_rng(0)).tolist() == [[3, 2], [4, 1]]
    assert found.draw(2, np.random.default_rng(0)).tolist() == [[1, 1]] * 2
    assert at_share(rows, share).tolist() == [[2, 1, share], [3, 0, share]]


def test_full_trials_are_asked_for_and_others_are_not_told() -> None:
    wrapped = FullTrials(SHARED, Inner)
    inner: Any = wrapped._inner
    assert wrapped.ask(2).tolist() == [[1, 0, 2], [2, 1, 2]]
    wrapped.tell([[1, 0, 2], [2, 1, 0], [0, 0, 2]], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [[0.1], [0.2], [0.3]])
    wrapped.tell([[2, 1, 1]], [[3.0, 4.0]])
    wrapped.tell([[2, 1, 2]], None)
    assert inner.told == [([[1, 0], [0, 0]], [[1.0, 2.0], [5.0, 6.0]], [[0.1], [0.3]]), ([[2, 1]], None, None)]


def test_rows_of_a_problem_and_their_prior() -> None:
    """What is inactive counts as 0; a prior is of the first goal that trials reveal, in its direction."""
    problem = Problem(
        cardinalities=np.array([3, 4]),
        goals=(Goal(name="cost", free=True), Goal(name="speed", direction="maximize")),
        free=lambda rows: (rows[:, :1], np.zeros((len(rows), 0))),
        active=lambda rows: np.column_stack([np.ones(len(rows), bool), rows[:, 0] > 0]),
        prior=lambda rows: 1.0 * rows[:, 0],
    )
    assert problem.canonicalise([[0, 3], [2, 3]]).tolist() == [[0, 0], [2, 3]]
    assert problem.canonicalise([2, 3]).tolist() == [[2, 3]]
    assert problem.prior_values(np.array([[2, 0]])).tolist() == [-2.0]
    drawn = problem.draw(400, np.random.default_rng(0))
    assert drawn.max(axis=0).tolist() == [2, 3]
    assert (drawn[drawn[:, 0] == 0, 1] == 0).all()
    costs, over = problem.price(drawn[:0])
    assert (costs.shape, over.shape) == ((0, 1), (0, 0))
    assert problem.size() == 12.0


def test_variables_are_numbered_in_equal_width() -> None:
    ten = Problem(cardinalities=np.full(10, 2), goals=(Goal(name="loss"),))
    eleven = Problem(cardinalities=np.full(11, 2), goals=(Goal(name="loss"),), kinds=("k",) * 11)
    assert (_variable(ten, 0), _variable(ten, 9)) == ("x0", "x9")
    assert (_variable(eleven, 0), _variable(eleven, 10)) == ("x00.k", "x10.k")


def returns(value: Any) -> Any:
    return lambda row: value


@pytest.mark.parametrize(
    ("value", "objectives", "violations"),
    [
        (3, [3.0], []),
        ([1, 2.5], [1.0, 2.5], []),
        (np.array([[1.0], [2.0]]), [1.0, 2.0], []),
        (Outcome(objectives=2.0, violations=[0.5, -1]), [2.0], [0.5, -1.0]),
    ],
)
def test_what_an_evaluation_may_return(value: Any, objectives: list[float], violations: list[float]) -> None:
    kind, found = attempt(returns(value), np.array([1]))
    assert kind == "result"
    assert (found.objectives, list(found.violations)) == (objectives, violations)


def test_what_an_evaluation_may_not_return() -> None:
    """Anything that is no list of numbers, shown in 80 characters, and an error with its place."""
    assert attempt(returns("abc"), np.array([1])) == (
        "failed",
        "the evaluation returned 'abc'; it must return numbers or an Outcome",
    )
    kind, said = attempt(returns("y" * 200), np.array([1]))
    assert (kind, len(said)) == ("failed", len("the evaluation returned ; it must return numbers or an Outcome") + 80)

    def broken(row: np.ndarray) -> float:
        raise KeyError("gone")

    kind, said = attempt(broken, np.array([1]))
    assert kind == "failed"
    assert said.startswith("KeyError: 'gone' (test_loops_by_hand.py:")


def test_one_evaluation_at_a_time_in_this_process() -> None:
    here = executor(lambda row: float(row[0]), 1, timeout_s=None)
    assert isinstance(here, InProcess)
    assert (here.idle, here.poll(0.0)) == (1, [])
    here.submit(7, np.array([5]))
    assert here.idle == 0
    (event,) = here.poll(0.0)
    assert (event.job, event.kind, event.data.objectives, event.died) == (7, "result", [5.0], False)
    assert (here.idle, here.poll(0.0)) == (1, [])
    here.submit(8, np.array([]))
    (event,) = here.poll(0.0)
    assert (event.job, event.kind) == (8, "failed")
    assert event.data["message"].startswith("IndexError")
    with pytest.raises(InputError, match="at least one worker, not 0"):
        executor(len, 0, timeout_s=None)


def test_a_time_limit_or_a_second_worker_needs_processes() -> None:
    for workers, limit in ((2, None), (1, 60.0)):
        pool = executor(math.fsum, workers, timeout_s=limit)  # type: ignore[arg-type]
        try:
            assert isinstance(pool, Processes)
            assert pool.idle == workers
        finally:
            pool.close()


class Pool:
    """Worker processes with scripted answers."""

    def __init__(self, command: list[str], workers: int, **options: Any) -> None:
        self.command, self.workers, self.options = command, workers, options
        self.unfinished, self.given, self.closed, self.events = 0, [], False, []

    def submit(self, job: Any) -> int:
        self.unfinished += 1
        self.given.append(job)
        return 100 + len(self.given)

    def poll(self, timeout_s: float) -> list[Event]:
        self.unfinished -= len(self.events)
        return self.events

    def close(self) -> None:
        self.closed = True


def test_events_of_worker_processes_are_of_the_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "WorkerPool", Pool)
    there = Processes(math.fsum, 3, timeout_s=9.0)  # type: ignore[arg-type]
    pool: Any = there._pool
    assert (pool.workers, pool.options["silence_s"], pool.options["echo"], pool.options["environment"]) == (
        3,
        9,
        True,
        {},
    )
    assert pool.options["setup"] == reference_to(math.fsum)
    for trial in (7, 8):
        there.submit(trial, np.array([trial, 1]))
    assert (there.idle, pool.given) == (1, [{"row": [7, 1]}, {"row": [8, 1]}])
    pool.events = [
        Event(job=102, kind="result", data={"objectives": [1.0], "violations": [2.0]}),
        Event(job=101, kind="failed", data={"message": "hung"}, died=True),
    ]
    ended, dead = there.poll(0.0)
    assert (ended.job, ended.data, ended.died) == (8, Outcome(objectives=[1.0], violations=[2.0]), False)
    assert (dead.job, dead.kind, dead.data, dead.died) == (7, "failed", {"message": "hung"}, True)
    assert there.idle == 3
    there.close()
    assert pool.closed


def outcome(problem: Problem, objectives: Any, violations: Any = ()) -> tuple[Any, Any, str]:
    loop = object.__new__(_Loop)
    loop._problem = problem
    values, over, reason = loop._outcome(np.array([3, 1]), Outcome(objectives=objectives, violations=violations))
    return (None if values is None else values.tolist()), (None if over is None else list(over)), reason


def test_what_the_cost_model_knows_is_filled_in() -> None:
    """Free objectives in their own direction and free violations; or all of them as they were returned."""
    problem = Problem(
        cardinalities=np.array([4, 2]),
        goals=(Goal(name="rate", direction="maximize", free=True), Goal(name="loss"), Goal(name="cost", free=True)),
        limits=(Limit(name="measured"), Limit(name="free", free=True)),
        free=lambda rows: (np.column_stack([rows[:, 0] * 2.0, rows[:, 0] * 10.0]), rows[:, :1] - 5.0),
    )
    assert outcome(problem, [0.5], [0.25]) == ([6.0, 0.5, 30.0], [0.25, -2.0], "")
    assert outcome(problem, [1.0, 2.0, 3.0], [4.0, 5.0]) == ([1.0, 2.0, 3.0], [4.0, 5.0], "")
    assert outcome(problem, [1.0, 2.0], [4.0]) == (None, None, "the evaluation returned 2 objectives and 2 violations")
    assert outcome(problem, [1.0], [4.0, 5.0, 6.0])[2] == "the evaluation returned 3 objectives and 3 violations"
    assert outcome(problem, [math.nan], [4.0])[2] == "the evaluation returned [6.0, nan, 30.0], not all of them finite"
    assert outcome(problem, [1.0], [math.inf])[0] is None


def test_an_optuna_sampler_sees_rows_as_whole_numbers_or_reals_and_all_results() -> None:
    pytest.importorskip("optuna", reason="optuna comes with chipwise[search]")
    from chipwise.design.strategies.algorithms.optuna_samplers import Gp, Tpe

    problem = Problem(
        cardinalities=np.array([4, 2]),
        goals=(Goal(name="loss"), Goal(name="size", direction="maximize")),
        limits=(Limit(name="m"),),
    )
    found = Tpe(problem, seed=0, initial=3)
    assert {name: (each.low, each.high) for name, each in found._space.items()} == {"x0": (0, 3), "x1": (0, 1)}
    sampler = found._study.sampler
    assert (sampler._multivariate, sampler._constant_liar, sampler._n_startup_trials) == (True, True, 3)
    assert [str(each.name) for each in found._study.directions] == ["MINIMIZE", "MINIMIZE"]
    found.tell([[3, 1], [0, 0]], [[1.5, 7.0], [2.5, 8.0]], [[0.5], [-0.5]])
    trials = found._study.get_trials()
    assert [trial.params for trial in trials] == [{"x0": 3, "x1": 1}, {"x0": 0, "x1": 0}]
    assert [trial.values for trial in trials] == [[1.5, -7.0], [2.5, -8.0]]
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 2
    asked = found.ask(2)
    assert len(np.unique(asked, axis=0)) == 2
    assert Tpe(problem, seed=0).initial == 10
    pytest.importorskip("scipy", reason="scipy comes with chipwise[search]")
    real = Gp(problem, seed=0)._space
    assert {name: (each.low, each.high) for name, each in real.items()} == {"x0": (0.0, 3.0), "x1": (0.0, 1.0)}


def test_a_suggestion_that_is_running_leaves_when_it_is_told() -> None:
    pytest.importorskip("optuna", reason="optuna comes with chipwise[search]")
    from chipwise.design.strategies.algorithms.optuna_samplers import Tpe

    found = Tpe(Problem(cardinalities=np.array([6, 6]), goals=(Goal(name="loss"),)), seed=0, initial=2)
    found.tell([[0, 0], [1, 1]], [[1.0], [2.0]])
    (row,) = found.ask(1).tolist()
    running = [trial for trial in found._study.get_trials() if trial.state.name == "RUNNING"]
    assert [list(trial.params.values()) for trial in running] == [row]
    found.tell([row], [[0.5]])
    states = [trial.state.name for trial in found._study.get_trials() if list(trial.params.values()) == row]
    assert "RUNNING" not in states
    assert "COMPLETE" in states
    assert found._running == {}


@pytest.mark.parametrize(("beat_s", "waits"), [(10.0, [0.05, 1.0]), (0.5, [0.05, 0.5]), (0.01, [0.01, 0.01])])
def test_results_are_waited_for_shortly_while_a_batch_is_computed(beat_s: float, waits: list[float]) -> None:
    """A twentieth of a second beside a strategy that thinks, else a second; never longer than a heartbeat."""
    loop: Any = object.__new__(_Loop)
    loop._wanted, loop._finished, loop._mine, loop._others, loop._queue = 1, 0, {3: (b"", 0)}, {}, deque()
    loop._beat_s, loop._beaten, loop._clock, loop._asked = beat_s, 0.0, lambda: 0.0, object()
    loop._sync = lambda: None
    loop._refill = lambda thinking: None
    waited: list[float] = []

    def poll(timeout_s: float) -> list[Event]:
        waited.append(timeout_s)
        loop._asked, loop._finished = None, len(waited) - 1
        return []

    loop.run(SimpleNamespace(idle=1, poll=poll), workers=2)
    assert waited == waits
    assert loop._low == 2


def test_another_searchs_trial_is_silent_where_no_heartbeat_came_for_so_long() -> None:
    """Five seconds after the last one that was seen; a process that no longer runs is silent at once."""
    now = [100.0]
    watch = HeartbeatMonitor(5.0, lambda: now[0])

    def silent(beat: int, seconds: float, owner: str = "elsewhere 1 2.00") -> bool:
        now[0] = seconds
        return watch.is_silent(Trial(number=1, state="running", notes={"beat": beat, "owner": owner}))

    assert not silent(1, 100.0)
    assert not silent(1, 105.0)
    assert silent(1, 105.1)
    assert not silent(2, 106.0)
    assert not silent(2, 111.0)
    assert silent(2, 111.5)
    host, number, begun = optimise._owner().split()
    assert not optimise._gone(f"{host} {number} {begun}")
    assert optimise._gone(f"{host} {number} 1.00")
    assert optimise._gone(f"{host} no number")
    assert not optimise._gone(f"elsewhere {number} 1.00")
    assert silent(3, 112.0, f"{host} {number} 1.00")
    fresh = HeartbeatMonitor(5.0, lambda: 0.0)
    assert not fresh.is_silent(Trial(number=1, state="running", notes={}))
