"""The general loop: a problem, something that evaluates one candidate, and a study that survives what happens.

Every trial is told to the study when it begins and when it ends. Whoever holds a running trial counts beats in it; one
whose beats stop is given back: it ends as failed, and its candidate is tried again. Beats are counted and watched by
the watcher's own clock that never goes back, so a machine whose time jumps changes nothing. Several searches on several
machines may share one study: each learns what the others found and leaves to them what they are trying.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.digest import digest
from chipwise.core.errors import InputError
from chipwise.core.fields import convert, describe, whole_number
from chipwise.core.workers import Event
from chipwise.optim.executors import Evaluate, Executor, Outcome, executor
from chipwise.optim.history import penalised
from chipwise.optim.pareto import non_dominated
from chipwise.optim.strategies import make_strategy
from chipwise.optim.strategy import Problem, Rows, Strategy
from chipwise.optim.study import Study, Trial

BEAT_S, GRACE_S = 15.0, 180.0  # between beats; without one for so long, a trial is given back
ATTEMPTS = 3  # of a candidate whose worker keeps dying
MOST_WORKERS = 1_024
BATCH = 10  # candidates asked for at once; a strategy spreads a batch
GIVEN_BACK = "given_back"


@dataclass(frozen=True)
class Found:
    """All finished trials of a study, in order of number.

    Attributes:
        rows: What was evaluated, (n, d).
        objectives: In the goals' directions, (n, m).
        violations: At most 0 where a limit holds, (n, k).
        front: Indices of those that hold every hard limit, at full fidelity, and that no other such dominates; past a
            soft limit the first objective counts as worse by its penalty.
        failed: How many evaluations failed.
    """

    rows: Rows
    objectives: Float64Array
    violations: Float64Array
    front: tuple[int, ...]
    failed: int


def optimise(
    problem: Problem,
    evaluate: Evaluate,
    *,
    evaluations: int,
    strategy: str = "auto",
    seed: int = 0,
    workers: int = 1,
    on: str = "processes",
    storage: str | Path | None = None,
    name: str = "search",
    batch: int = BATCH,
    timeout_s: float | None = None,
    beat_s: float = BEAT_S,
    grace_s: float = GRACE_S,
    clock: Callable[[], float] = time.monotonic,
    told: Callable[[int, int], None] = lambda done, wanted: None,
) -> Found:
    """Searches ``problem`` until its study holds ``evaluations`` finished trials.

    Args:
        problem: What may be chosen, the objectives and limits, and what is known for free.
        evaluate: One row (d,) to an Outcome, or to its objectives alone. With several workers it must be a function
            that a new process can import. An exception makes the trial fail with its reason.
        evaluations: Finished trials wanted in all: failed ones, earlier sittings' and other machines' included.
        strategy: A name of ``chipwise strategies``.
        seed: Of the strategy.
        workers: Evaluations side by side.
        on: ``processes`` of this machine, or ``ray``.
        storage: A journal's path or a database's URL, to go on after a stop and to share; memory unless given.
        name: Of the study in its storage.
        batch: Candidates asked for at once.
        timeout_s: Seconds after which an evaluation is taken for hung; its worker is killed and it is tried again.
        beat_s: Seconds between beats.
        grace_s: Seconds without a beat after which another's trial is given back.
        clock: Seconds that never go back.
        told: Told how many trials have finished, and how many are wanted.

    Raises:
        InputError: The problem, the storage or the executor cannot be used.
        StudyError: The study is of another problem.
        StorageError: The storage refuses; what was told is kept.
    """
    if not isinstance(problem, Problem):
        raise InputError(f"problem must be a Problem, not {describe(problem)}")
    if not callable(evaluate):
        raise InputError(f"evaluate must be a function of one row, not {describe(evaluate)}")
    evaluations, batch = whole_number("evaluations", evaluations), whole_number("batch", batch)
    workers, seed = whole_number("workers", workers, most=MOST_WORKERS), whole_number("seed", seed, least=0)
    for name, seconds in (("timeout_s", timeout_s), ("beat_s", beat_s), ("grace_s", grace_s)):
        if seconds is not None and convert(float, seconds, name) <= 0:
            raise InputError(f"{name}: must be above 0, not {seconds:g}")
    study = study_of(problem, storage, name=name)
    loop = _Loop(problem, study, strategy, seed, evaluations, batch, beat_s, grace_s, clock, told)
    pool = executor(evaluate, workers, on=on, timeout_s=timeout_s, clock=clock)
    try:
        loop.run(pool, workers=workers)
    finally:
        pool.close()
        loop.leave()
    return found(problem, study)


def study_of(problem: Problem, storage: str | Path | None, *, name: str = "search") -> Study:
    """The study of ``problem`` in a storage; it is created when missing.

    Raises:
        StudyError: The study is of another problem.
        StorageError: The storage refuses.
    """
    return Study(
        storage,
        name=name,
        directions=[goal.direction for goal in problem.goals],
        identity=_identity(problem),
        choices={_variable(problem, i): int(c) for i, c in enumerate(problem.cardinalities)},
    )


def found(problem: Problem, study: Study) -> Found:
    """What a study of ``problem`` holds."""
    trials = study.trials()
    done = [trial for trial in trials if trial.state == "complete"]
    rows = np.array([trial.notes["row"] for trial in done], np.int64).reshape(-1, len(problem.cardinalities))
    values = np.array([trial.values for trial in done], float).reshape(-1, len(problem.goals))
    over = np.array([trial.notes["violations"] for trial in done], float).reshape(len(done), len(problem.limits))
    counts = problem.feasible(over)
    if problem.fidelities:  # the last variable is the share of a full trial
        counts &= rows[:, -1] == len(problem.fidelities) - 1
    held = np.flatnonzero(counts)
    paid = penalised(problem.to_minimise(values), problem.penalty(over))
    front = held[non_dominated(paid[held])] if len(held) else held
    failed = sum(trial.state == "failed" and GIVEN_BACK not in trial.notes for trial in trials)
    return Found(rows, values, over, tuple(int(i) for i in front), failed)


def _identity(problem: Problem) -> str:
    goals = [(goal.name, goal.direction) for goal in problem.goals]
    return digest([problem.cardinalities.tolist(), goals, [limit.name for limit in problem.limits]])


def _variable(problem: Problem, i: int) -> str:
    width = len(str(len(problem.cardinalities) - 1))
    return f"x{i:0{width}d}" if problem.kinds is None else f"x{i:0{width}d}.{problem.kinds[i]}"


class Watch:
    """Tells whose beats stopped, by a clock of its own.

    Args:
        grace_s: Seconds without a beat.
        clock: Seconds that never go back.
    """

    def __init__(self, grace_s: float, clock: Callable[[], float]) -> None:
        self._grace_s, self._clock = grace_s, clock
        self._heard: dict[int, tuple[int, float]] = {}

    def silent(self, trial: Trial) -> bool:
        """Whether a running trial of another has been silent for too long, or its process is known to be gone."""
        if _gone(trial.notes.get("owner", "")):
            return True
        beat, now = int(trial.notes.get("beat", 0)), self._clock()
        last, since = self._heard.get(trial.number, (-1, now))
        if beat != last:
            self._heard[trial.number] = beat, now
            return False
        return now - since > self._grace_s


def _owner() -> str:
    import psutil

    return f"{socket.gethostname()} {os.getpid()} {psutil.Process().create_time():.2f}"


def _gone(owner: str) -> bool:
    """Whether ``owner`` was a process of this machine that no longer runs."""
    import psutil

    host, _, process = owner.partition(" ")
    if host != socket.gethostname():
        return False
    number, _, begun = process.partition(" ")
    try:
        return f"{psutil.Process(int(number)).create_time():.2f}" != begun
    except (psutil.Error, ValueError):
        return True


class _Loop:
    """One search's part in a study."""

    def __init__(
        self,
        problem: Problem,
        study: Study,
        strategy: str,
        seed: int,
        wanted: int,
        batch: int,
        beat_s: float,
        grace_s: float,
        clock: Callable[[], float],
        told: Callable[[int, int], None],
    ) -> None:
        self._problem, self._study, self._wanted, self._batch = problem, study, wanted, batch
        self._beat_s, self._clock, self._told = beat_s, clock, told
        self._watch, self._owner = Watch(grace_s, clock), _owner()
        self._queue: deque[tuple[bytes, int]] = deque()  # rows to try, and how often they were tried
        self._mine: dict[int, tuple[bytes, int]] = {}  # running here, by trial
        self._others: dict[bytes, int] = {}  # running elsewhere
        self._tried: set[bytes] = set()  # rows that somebody has finished
        self._known: set[int] = set()  # trials whose end the strategy was told
        self._finished = 0
        self._beats, self._beaten = 0, clock()
        self._low = 0  # the next batch is asked for when no more than so many are queued
        self._asked: Future[Rows] | None = None  # the batch that the strategy is thinking about
        self._waiting: list[tuple[Rows, Float64Array | None, Float64Array | None]] = []  # what it will be told then
        study.remember(**{f"search {self._owner}": True})  # before looking who else is there
        self._strategy: Strategy = make_strategy(strategy, problem, seed=_seed(seed, study, self._owner))

    def run(self, pool: Executor, *, workers: int) -> None:
        """Until as many trials have finished as are wanted, or the strategy has no more ideas.

        With several workers the strategy thinks in a thread of its own while they work on what is queued.
        """
        self._low = workers if workers > 1 else 0
        self._sync()
        with ThreadPoolExecutor(max_workers=1) as thinking:
            while self._finished < self._wanted:
                self._refill(thinking)
                while pool.idle and self._queue:
                    self._begin(pool)
                if self._asked is not None and not self._mine:
                    wait([self._asked])
                    continue
                if not self._mine and not self._queue and not self._others:
                    return  # nothing is left to try
                for event in pool.poll(min(self._beat_s, 1.0 if self._asked is None else 0.05)):
                    self._ended(event)
                if not self._mine:
                    time.sleep(min(self._beat_s, 1.0) if self._others else 0.0)
                if self._clock() - self._beaten >= self._beat_s or not self._mine:
                    self._beat()

    def leave(self) -> None:
        """Gives back what still runs here."""
        for number in tuple(self._mine):
            self._study.fail(number, "given back: the search was stopped", **{GIVEN_BACK: True})
        self._mine.clear()

    def _refill(self, thinking: ThreadPoolExecutor) -> None:
        """Asks for the next batch when little is queued; takes it when it is there."""
        if self._asked is None:
            if len(self._queue) > self._low:
                return
            self._sync()
            room = self._wanted - self._finished - len(self._mine) - len(self._others) - len(self._queue)
            if room <= 0:
                return
            self._asked = thinking.submit(self._strategy.ask, min(self._batch, room))
        if self._low and not self._asked.done():
            return
        rows, self._asked = self._asked.result(), None
        self._queue.extend((key, 0) for key in (_key(row) for row in rows) if key not in self._others)
        for told in self._waiting:
            self._strategy.tell(*told)
        self._waiting.clear()

    def _tell(self, rows: Rows, values: Float64Array | None, over: Float64Array | None = None) -> None:
        """Tells the strategy, once it has finished thinking."""
        if self._asked is None:
            self._strategy.tell(rows, values, over)
        else:
            self._waiting.append((rows, values, over))

    def _begin(self, pool: Executor) -> None:
        key, tried = self._queue.popleft()
        if self._study.where is not None:
            self._sync()
        if key in self._others or (key in self._tried and not tried):
            return  # somebody else was faster
        row = _row(key)
        params = {_variable(self._problem, i): int(value) for i, value in enumerate(row)}
        notes = {"row": row.tolist(), "owner": self._owner, "beat": 0, "attempt": tried + 1}
        number = self._study.start(params, notes)
        self._mine[number] = key, tried + 1
        pool.submit(number, row)

    def _ended(self, event: Event) -> None:
        key, tried = self._mine.pop(event.job)
        row = _row(key)
        if event.died:
            self._lost(event.job, key, tried, "its worker died")
            return
        self._known.add(event.job)
        self._tried.add(key)
        self._finished += 1
        values: Float64Array | None = None
        over: Any = None
        if event.kind == "result":
            values, over, reason = self._outcome(row, event.data)
        else:
            reason = str(event.data["message"])
        if values is None:
            self._study.fail(event.job, reason)
            self._tell(row[None], None)
        else:
            self._keep(event.job, row, values, over)
            self._tell(row[None], values[None], over[None])
        self._told(self._finished, self._wanted)

    def _keep(self, number: int, row: Rows, values: Float64Array, over: Any) -> None:
        """Tells the study a result; one that another has given back meanwhile is kept as a trial of its own."""
        notes = {"violations": [float(value) for value in over]}
        if self._study.trial(number).state == "running":
            self._study.note(number, **notes)
        if not self._study.finish(number, tuple(float(value) for value in values)):
            params = {_variable(self._problem, i): int(value) for i, value in enumerate(row)}
            known = self._study.add(params, {"row": row.tolist(), "late": number, **notes}, values)
            self._known.add(known)

    def _outcome(self, row: Rows, found: Outcome) -> tuple[Float64Array | None, Any, str]:
        """Objectives and violations with those that the cost model knows filled in; or why they cannot be used."""
        problem = self._problem
        objectives, violations = np.asarray(found.objectives, float), np.asarray(found.violations, float)
        free, over = problem.price(row[None])
        m, k = len(problem.goals), len(problem.limits)
        if len(objectives) == len(problem.expensive_goals) < m:
            full = np.empty(m)
            signs = problem.to_minimise(np.ones((1, m)))[0]
            full[problem.expensive_goals] = objectives
            full[problem.free_goals] = free[0] * signs[problem.free_goals]
            objectives = full
        if len(violations) == len(problem.expensive_limits) < k:
            whole = np.empty(k)
            whole[problem.expensive_limits] = violations
            whole[problem.free_limits] = over[0]
            violations = whole
        if len(objectives) != m or len(violations) != k:
            return None, None, f"the evaluation returned {len(objectives)} objectives and {len(violations)} violations"
        if not (np.isfinite(objectives).all() and np.isfinite(violations).all()):
            return None, None, f"the evaluation returned {objectives.tolist()}, not all of them finite"
        return objectives, violations, ""

    def _lost(self, number: int, key: bytes, tried: int, why: str) -> None:
        """Gives a trial back: another tries its candidate, unless too many have."""
        last = tried >= ATTEMPTS
        notes = {} if last else {GIVEN_BACK: True}
        reason = f"{why}; tried {tried} times" if last else f"given back: {why}"
        if not self._study.fail(number, reason, **notes):
            return  # it ended after all, or somebody else gave it back
        self._known.add(number)
        if last:
            self._finished += 1
            self._tell(_row(key)[None], None)
        else:
            self._queue.append((key, tried))

    def _sync(self) -> None:
        """Learns what others told, and gives back what they left."""
        self._others = {}
        rows, values, over = [], [], []
        for trial in self._study.trials():
            if trial.number in self._known or trial.number in self._mine:
                continue
            row = np.array(trial.notes["row"], np.int64)
            if trial.state == "running":
                if self._watch.silent(trial):
                    self._lost(trial.number, _key(row), int(trial.notes.get("attempt", 1)), "its worker fell silent")
                else:
                    self._others[_key(row)] = trial.number
                continue
            self._known.add(trial.number)
            if GIVEN_BACK in trial.notes:
                continue
            self._finished += 1
            self._tried.add(_key(row))
            if trial.state == "complete":
                rows.append(row)
                values.append(trial.values)
                over.append(trial.notes["violations"])
            else:
                self._tell(row[None], None)
        if rows:
            self._tell(np.array(rows), np.array(values), np.array(over).reshape(len(rows), len(self._problem.limits)))

    def _beat(self) -> None:
        self._beats += 1
        self._beaten = self._clock()
        for number in self._mine:
            self._study.note(number, beat=self._beats)
        self._sync()


def _seed(seed: int, study: Study, owner: str) -> int:
    """``seed`` for a new study; one of its own for a search that goes on or joins, so that it draws something else."""
    before = len(study.trials())
    searches = [name.removeprefix("search ") for name in study.memory if name.startswith("search ")]
    joins = any(other != owner and not _gone(other) for other in searches)
    if not before and not joins:
        return seed
    return int(np.random.SeedSequence([seed, before, os.getpid() if joins else 0]).generate_state(1)[0])


def _key(row: Rows) -> bytes:
    return np.ascontiguousarray(row, np.int64).tobytes()


def _row(key: bytes) -> Rows:
    return np.frombuffer(key, np.int64).copy()
