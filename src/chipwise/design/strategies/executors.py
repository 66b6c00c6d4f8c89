"""Runs evaluations in this process or in worker processes."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from chipwise.core.workers import Event, WorkerPool
from chipwise.design.strategies.references import reference_to
from chipwise.design.strategies.strategy import Rows
from chipwise.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of evaluating one row.

    Args:
        objectives: Values of all objectives, or only of those that need a trial, in the problem's order.
        violations: Violations of all limits, or only of those that need a trial, in the problem's order.
    """

    objectives: Sequence[float]
    violations: Sequence[float] = ()


Evaluate = Callable[[Rows], object]  # an Outcome, or only its objectives


class Executor(Protocol):
    """Evaluates several rows at the same time."""

    @property
    def idle(self) -> int:
        """Number of rows that can be submitted now."""
        ...

    def submit(self, trial: int, row: Rows) -> None:
        """Starts an evaluation; there must be an idle worker."""
        ...

    def poll(self, timeout_s: float) -> list[Event]:
        """Events of jobs that have ended; waits up to ``timeout_s`` for the first. ``job`` is the trial's number."""
        ...

    def close(self) -> None:
        """Ends all workers."""
        ...


class InProcess:
    """Evaluates in this process, one row at a time."""

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self._waiting: tuple[int, Rows] | None = None

    @property
    def idle(self) -> int:
        """1 if a row can be submitted, else 0."""
        return int(self._waiting is None)

    def submit(self, trial: int, row: Rows) -> None:
        """Stores the row until the next poll."""
        self._waiting = trial, row

    def poll(self, timeout_s: float) -> list[Event]:
        """Evaluates the submitted row."""
        if self._waiting is None:
            return []
        trial, row = self._waiting
        self._waiting = None
        kind, value = attempt(self._evaluate, row)
        return [Event(job=trial, kind=kind, data=value if kind == "result" else {"message": value})]

    def close(self) -> None:
        """Does nothing, because there are no workers to end."""


def attempt(evaluate: Evaluate, row: Rows) -> tuple[Literal["result", "failed"], Any]:
    """Evaluates one row: an :class:`Outcome`, or the reason why it failed."""
    try:
        value = evaluate(row)
    except Exception as error:  # any error of a user's function fails its trial, not the search
        where = traceback.extract_tb(error.__traceback__)[-1]
        return "failed", f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}:{where.lineno})"
    objectives, violations = (value.objectives, value.violations) if isinstance(value, Outcome) else (value, ())
    try:
        return "result", Outcome(objectives=_numbers(objectives), violations=_numbers(violations))
    except (TypeError, ValueError):
        return "failed", f"the evaluation returned {value!r:.80}; it must return numbers or an Outcome"


def _numbers(values: object) -> list[float]:
    return [float(value) for value in np.asarray(values, float).reshape(-1)]


class Processes:
    """Evaluates in worker processes, and replaces those that die.

    Args:
        evaluate: A function that a new process can import.
        workers: Number of workers.
        timeout_s: Seconds after which an evaluation counts as hung; its worker is killed.
        clock: Returns monotonic seconds.

    Raises:
        InputError: A new process cannot import ``evaluate``.
    """

    def __init__(
        self,
        evaluate: Evaluate,
        workers: int,
        *,
        timeout_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count = workers
        self._trials: dict[int, int] = {}  # by job number of the pool
        self._pool = WorkerPool(
            [sys.executable, "-m", "chipwise.design.strategies.evaluation_worker"],
            workers,
            name="evaluation worker",
            silence_s=timeout_s,
            setup=reference_to(evaluate),
            environment={},
            echo=True,
            clock=clock,
        )

    @property
    def idle(self) -> int:
        """Number of idle workers."""
        return self._count - self._pool.unfinished

    def submit(self, trial: int, row: Rows) -> None:
        """Passes the row to an idle worker."""
        self._trials[self._pool.submit({"row": row.tolist()})] = trial

    def poll(self, timeout_s: float) -> list[Event]:
        """Results, failures, and evaluations lost to a dead or hung worker."""
        events = []
        for event in self._pool.poll(timeout_s):
            data = Outcome(**event.data) if event.kind == "result" else event.data
            events.append(Event(job=self._trials.pop(event.job), kind=event.kind, data=data, died=event.died))
        return events

    def close(self) -> None:
        """Stops the workers at once."""
        self._pool.close()


def executor(
    evaluate: Evaluate, workers: int, *, timeout_s: float | None, clock: Callable[[], float] = time.monotonic
) -> Executor:
    """Creates an executor: in this process for one worker without a time limit, else with worker processes.

    Raises:
        InputError: The number of workers is below 1.
    """
    if workers < 1:
        raise InputError(f"there must be at least one worker, not {workers}")
    if workers == 1 and timeout_s is None:
        return InProcess(evaluate)
    return Processes(evaluate, workers, timeout_s=timeout_s, clock=clock)
