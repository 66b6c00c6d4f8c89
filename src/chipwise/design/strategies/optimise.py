"""The general search loop: searches a problem with a function that evaluates candidates; survives crashes.

The study records every trial when it starts and when it ends. The search that runs a trial updates the trial's
heartbeat, a counter. When the heartbeat stops rising, the trial is released: the trial ends as failed, and its
candidate is tried again. Observers use a monotonic clock, so changes of the system time have no effect. Several
searches on several machines may share one study: each learns from the results of the others and skips candidates that
others evaluate.
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

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.digest import digest
from chipwise.core.fields import convert, describe, whole_number
from chipwise.core.record import Record
from chipwise.core.workers import Event
from chipwise.design.strategies.algorithms import make_strategy
from chipwise.design.strategies.executors import Evaluate, Executor, Outcome, executor
from chipwise.design.strategies.history import penalised
from chipwise.design.strategies.pareto import non_dominated
from chipwise.design.strategies.strategy import Problem, Rows, Strategy
from chipwise.design.strategies.study import Study, Trial
from chipwise.errors import InputError

BEAT_S, GRACE_S = 15.0, 180.0  # seconds between heartbeats; seconds without one after which a trial is released
ATTEMPTS = 3  # attempts at a candidate whose workers keep dying
MOST_WORKERS = 1_024
BATCH = 10  # candidates per proposal of the strategy
RELEASED = "given_back"


@dataclass(frozen=True)
class SearchResult:
    """All finished trials of a study, in the order of their numbers.

    Attributes:
        rows: Evaluated rows, (n, d).
        objectives: Objectives in the goals' directions, (n, m).
        violations: Violations of limits, (n, k); at most 0 if a limit is met.
        front: Indices of the Pareto-optimal trials among full trials that meet every hard limit. Penalties of soft
            limits are added to the first objective.
        failed: Number of failed evaluations.
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
    storage: str | Path | None = None,
    name: str = "search",
    batch: int = BATCH,
    timeout_s: float | None = None,
    beat_s: float = BEAT_S,
    grace_s: float = GRACE_S,
    clock: Callable[[], float] = time.monotonic,
    on_progress: Callable[[int, int], None] = lambda done, wanted: None,
) -> SearchResult:
    """Searches ``problem`` until its study holds ``evaluations`` finished trials.

    Args:
        problem: Variables, objectives, limits, and a function that computes free objectives and limits without a trial.
        evaluate: Returns the Outcome of one row (d,), or only its objectives. With several workers, it must be a
            function that a new process can import. If it raises an exception, the trial fails with the exception's
            text.
        evaluations: Total number of finished trials at which to stop; it includes trials that failed, that were
            finished before, or that other machines ran.
        strategy: A name from ``chipwise strategies``.
        seed: Random seed of the strategy.
        workers: Number of parallel evaluations, in processes of this machine.
        storage: A journal's path or a database's URL, so that the study can be resumed and shared. Default: memory.
        name: Name of the study in its storage.
        batch: Candidates per proposal of the strategy.
        timeout_s: Seconds after which an evaluation counts as hung. Its worker is killed, and the row is tried again.
        beat_s: Seconds between heartbeats.
        grace_s: Seconds without a heartbeat after which another search's trial is released.
        clock: Returns monotonic seconds.
        on_progress: Called with the number of finished trials and the number of requested trials.

    Raises:
        InputError: The problem, the storage or the executor cannot be used.
        StudyError: The study belongs to another problem.
        StorageError: The storage cannot be written; finished trials are kept.
    """
    if not isinstance(problem, Problem):
        raise InputError(f"problem must be a Problem, not {describe(problem)}")
    if not callable(evaluate):
        raise InputError(f"evaluate must be a function that takes one row, not {describe(evaluate)}")
    evaluations, batch = whole_number("evaluations", evaluations), whole_number("batch", batch)
    workers, seed = whole_number("workers", workers, most=MOST_WORKERS), whole_number("seed", seed, least=0)
    for argument, seconds in (("timeout_s", timeout_s), ("beat_s", beat_s), ("grace_s", grace_s)):
        if seconds is not None and convert(float, seconds, argument) <= 0:
            raise InputError(f"{argument}: must be above 0, not {seconds:g}")
    study = study_of(problem, storage, name=name)
    loop = _Loop(problem, study, strategy, seed, evaluations, batch, beat_s, grace_s, clock, on_progress)
    pool = executor(evaluate, workers, timeout_s=timeout_s, clock=clock)
    try:
        loop.run(pool, workers=workers)
    finally:
        pool.close()
        loop.leave()
    return result_of(problem, study)


def study_of(problem: Problem, storage: str | Path | None, *, name: str = "search") -> Study:
    """Opens the study of ``problem`` in a storage, or creates it.

    Raises:
        StudyError: The study belongs to another problem.
        StorageError: The storage cannot be used.
    """
    return Study(
        storage,
        name=name,
        directions=[goal.direction for goal in problem.goals],
        identity=_identity(problem),
        choices={_variable(problem, i): int(c) for i, c in enumerate(problem.cardinalities)},
    )


def result_of(problem: Problem, study: Study) -> SearchResult:
    """Reads the finished trials from a study of ``problem``."""
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
    failed = sum(trial.state == "failed" and RELEASED not in trial.notes for trial in trials)
    return SearchResult(rows, values, over, tuple(int(i) for i in front), failed)


def _identity(problem: Problem) -> str:
    goals = [(goal.name, goal.direction) for goal in problem.goals]
    return digest([problem.cardinalities.tolist(), goals, [limit.name for limit in problem.limits]])


def _variable(problem: Problem, i: int) -> str:
    width = len(str(len(problem.cardinalities) - 1))
    return f"x{i:0{width}d}" if problem.kinds is None else f"x{i:0{width}d}.{problem.kinds[i]}"


class HeartbeatMonitor:
    """Detects trials of other searches whose heartbeats have stopped.

    Args:
        grace_s: Seconds without a heartbeat after which a trial counts as silent.
        clock: Returns monotonic seconds.
    """

    def __init__(self, grace_s: float, clock: Callable[[], float]) -> None:
        self._grace_s, self._clock = grace_s, clock
        self._last_beats: dict[int, tuple[int, float]] = {}

    def is_silent(self, trial: Trial) -> bool:
        """Whether another search's trial has had no heartbeat for too long, or its process no longer exists."""
        if _gone(Record(trial.notes).get("owner", str, "")):
            return True
        beat, now = Record(trial.notes).get("beat", int, 0), self._clock()
        last, since = self._last_beats.get(trial.number, (-1, now))
        if beat != last:
            self._last_beats[trial.number] = beat, now
            return False
        return now - since > self._grace_s


def _owner() -> str:
    import psutil

    return f"{socket.gethostname()} {os.getpid()} {psutil.Process().create_time():.2f}"


def _gone(owner: str) -> bool:
    """Whether ``owner`` names a process of this machine that no longer runs."""
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
    """Runs one search on a study."""

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
        on_progress: Callable[[int, int], None],
    ) -> None:
        self._problem, self._study, self._wanted, self._batch = problem, study, wanted, batch
        self._beat_s, self._clock, self._on_progress = beat_s, clock, on_progress
        self._watch, self._owner = HeartbeatMonitor(grace_s, clock), _owner()
        self._queue: deque[tuple[bytes, int]] = deque()  # rows to try, each with the number of earlier attempts
        self._mine: dict[int, tuple[bytes, int]] = {}  # rows that run in this search, by trial
        self._others: dict[bytes, int] = {}  # rows that run in other searches
        self._tried: set[bytes] = set()  # rows finished by any search
        self._known: set[int] = set()  # finished trials that the strategy has received
        self._finished = 0
        self._beats, self._beaten = 0, clock()
        self._low = 0  # request a new batch when at most this many rows are queued
        self._asked: Future[Rows] | None = None  # the batch that the strategy is computing
        self._waiting: list[
            tuple[Rows, Float64Array | None, Float64Array | None]
        ] = []  # results to pass to the strategy when its call to ``ask`` has ended
        study.remember(
            **{f"search {self._owner}": True}
        )  # before looking for other searches, so that they see this one
        self._strategy: Strategy = make_strategy(strategy, problem, seed=_seed(seed, study, self._owner))

    def run(self, pool: Executor, *, workers: int) -> None:
        """Runs until enough trials have finished or the strategy proposes no more candidates.

        With several workers, the strategy computes its next batch in a thread while queued rows are evaluated.
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
                    return  # no rows are left to try
                for event in pool.poll(min(self._beat_s, 1.0 if self._asked is None else 0.05)):
                    self._ended(event)
                if not self._mine:
                    time.sleep(min(self._beat_s, 1.0) if self._others else 0.0)
                if self._clock() - self._beaten >= self._beat_s or not self._mine:
                    self._beat()

    def leave(self) -> None:
        """Releases the trials that this search is still running."""
        for number in tuple(self._mine):
            self._study.fail(number, "released: the search was stopped", **{RELEASED: True})
        self._mine.clear()

    def _refill(self, thinking: ThreadPoolExecutor) -> None:
        """Requests the next batch when few rows are queued, and queues it when it is ready."""
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
        for results in self._waiting:
            self._strategy.tell(*results)
        self._waiting.clear()

    def _tell(self, rows: Rows, values: Float64Array | None, over: Float64Array | None = None) -> None:
        """Passes results to the strategy when no ``ask`` is running, because strategies need not be thread-safe."""
        if self._asked is None:
            self._strategy.tell(rows, values, over)
        else:
            self._waiting.append((rows, values, over))

    def _begin(self, pool: Executor) -> None:
        key, tried = self._queue.popleft()
        if self._study.where is not None:
            self._sync()
        if key in self._others or (key in self._tried and not tried):
            return  # another search has started this row meanwhile
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
        over: Float64Array | None = None
        if event.kind == "result":
            values, over, reason = self._outcome(row, event.data)
        else:
            reason = str(event.data["message"])
        if values is None or over is None:
            self._study.fail(event.job, reason)
            self._tell(row[None], None)
        else:
            self._keep(event.job, row, values, over)
            self._tell(row[None], values[None], over[None])
        self._on_progress(self._finished, self._wanted)

    def _keep(self, number: int, row: Rows, values: Float64Array, over: Float64Array) -> None:
        """Stores a result; if another search has released the trial, the result becomes a new trial."""
        notes = {"violations": [float(value) for value in over]}
        if self._study.trial(number).state == "running":
            self._study.note(number, **notes)
        if not self._study.finish(number, tuple(float(value) for value in values)):
            params = {_variable(self._problem, i): int(value) for i, value in enumerate(row)}
            known = self._study.add(params, {"row": row.tolist(), "late": number, **notes}, values)
            self._known.add(known)

    def _outcome(self, row: Rows, found: Outcome) -> tuple[Float64Array | None, Float64Array | None, str]:
        """All objectives and violations, or why they are invalid; computes missing ones that need no trial."""
        problem = self._problem
        objectives, violations = np.asarray(found.objectives, float), np.asarray(found.violations, float)
        free, over = problem.price(row[None])
        m, k = len(problem.goals), len(problem.limits)
        if len(objectives) == len(problem.expensive_goals) < m:
            signs = problem.to_minimise(np.ones((1, m)))[0]
            objectives = _filled(objectives, problem.expensive_goals, free[0] * signs[problem.free_goals])
        if len(violations) == len(problem.expensive_limits) < k:
            violations = _filled(violations, problem.expensive_limits, over[0])
        if len(objectives) != m or len(violations) != k:
            return None, None, f"the evaluation returned {len(objectives)} objectives and {len(violations)} violations"
        if not (np.isfinite(objectives).all() and np.isfinite(violations).all()):
            return None, None, f"the evaluation returned {objectives.tolist()}, not all of them finite"
        return objectives, violations, ""

    def _lost(self, number: int, key: bytes, tried: int, why: str) -> None:
        """Releases a trial so that its candidate is tried again, or gives it up after too many attempts."""
        last = tried >= ATTEMPTS
        notes = {} if last else {RELEASED: True}
        reason = f"{why}; tried {tried} times" if last else f"released: {why}"
        if not self._study.fail(number, reason, **notes):
            return  # the trial has ended, or another search released it
        self._known.add(number)
        if last:
            self._finished += 1
            self._tell(_row(key)[None], None)
        else:
            self._queue.append((key, tried))

    def _sync(self) -> None:
        """Reads results of other searches, and releases trials that these searches abandoned."""
        self._others = {}
        rows, values, over = [], [], []
        for trial in self._study.trials():
            if trial.number in self._known or trial.number in self._mine:
                continue
            row = np.array(trial.notes["row"], np.int64)
            if trial.state == "running":
                if self._watch.is_silent(trial):
                    self._lost(
                        trial.number, _key(row), Record(trial.notes).get("attempt", int, 1), "its heartbeats stopped"
                    )
                else:
                    self._others[_key(row)] = trial.number
                continue
            self._known.add(trial.number)
            if RELEASED in trial.notes:
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
    """``seed`` for a new study; when resuming or joining one, a derived seed, so that different rows are sampled."""
    before = len(study.trials())
    searches = [name.removeprefix("search ") for name in study.memory if name.startswith("search ")]
    joins = any(other != owner and not _gone(other) for other in searches)
    if not before and not joins:
        return seed
    return int(np.random.SeedSequence([seed, before, os.getpid() if joins else 0]).generate_state(1)[0])


def _filled(values: Float64Array, places: list[int], others: Float64Array) -> Float64Array:
    """An array with ``values`` at the indices ``places`` and ``others`` at the remaining indices, in order."""
    found = np.empty(len(values) + len(others))
    found[places] = values
    found[np.setdiff1d(np.arange(len(found)), places)] = others
    return found


def _key(row: Rows) -> bytes:
    return np.ascontiguousarray(row, np.int64).tobytes()


def _row(key: bytes) -> Rows:
    return np.frombuffer(key, np.int64).copy()
