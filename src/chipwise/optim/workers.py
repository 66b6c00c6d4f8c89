"""Where evaluations run: here, in worker processes, or on a Ray cluster. All tell what finished, failed or was lost."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any, Literal, Protocol

from chipwise.core.errors import InputError, MissingExtra

Work = Callable[[Any], Any]
_WATCH_S = 1.0  # how often a worker looks whether its search still lives


@dataclass(frozen=True)
class Event:
    """What became of one evaluation: its result, why it failed, or that its worker died."""

    ticket: int
    kind: Literal["result", "failed", "lost"]
    value: Any = None


class Executor(Protocol):
    """Evaluates several things side by side."""

    @property
    def idle(self) -> int:
        """How many more may be submitted now."""
        ...

    def submit(self, ticket: int, argument: Any) -> None:
        """Begins an evaluation; there must be an idle place."""
        ...

    def poll(self, timeout_s: float) -> list[Event]:
        """What ended, waiting at most ``timeout_s`` for the first."""
        ...

    def close(self) -> None:
        """Ends all workers."""
        ...


class Here:
    """Evaluates in this process, one at a time."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._waiting: tuple[int, Any] | None = None

    @property
    def idle(self) -> int:
        """One or none."""
        return int(self._waiting is None)

    def submit(self, ticket: int, argument: Any) -> None:
        """Keeps it for the next poll."""
        self._waiting = ticket, argument

    def poll(self, timeout_s: float) -> list[Event]:
        """Evaluates what was submitted."""
        if self._waiting is None:
            return []
        ticket, argument = self._waiting
        self._waiting = None
        kind, value = _tried(self._work, argument)
        return [Event(ticket, kind, value)]

    def close(self) -> None:
        """Nothing to end."""


def _tried(work: Work, argument: Any) -> tuple[Literal["result", "failed"], Any]:
    try:
        return "result", work(argument)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return "failed", f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}:{where.lineno})"


@dataclass
class _Place:
    process: Any
    pipe: Connection
    ticket: int | None = None
    begun: float = 0.0


class Processes:
    """Evaluates in worker processes, each of which is replaced when it dies.

    Args:
        work: What is done with each argument; a function that a new process can import.
        workers: How many.
        timeout_s: An evaluation that takes longer is taken for hung: its worker is killed, and it is lost.
        clock: Seconds that never go back.

    Raises:
        InputError: ``work`` cannot be sent to another process.
    """

    def __init__(
        self,
        work: Work,
        workers: int,
        *,
        timeout_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        try:
            ForkingPickler.dumps(work)
        except Exception as error:
            raise InputError(
                f"what is to be evaluated cannot be sent to worker processes ({error}); define it at the top level "
                "of a module, or use workers=1"
            ) from None
        self._work, self._timeout_s, self._clock = work, timeout_s, clock
        self._context = multiprocessing.get_context("spawn")
        self._places = [self._started() for _ in range(workers)]

    def _started(self) -> _Place:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._work, os.getpid()), daemon=True)
        process.start()
        theirs.close()
        return _Place(process, ours)

    @property
    def idle(self) -> int:
        """Workers without an evaluation."""
        return sum(place.ticket is None for place in self._places)

    def submit(self, ticket: int, argument: Any) -> None:
        """Gives it to an idle worker."""
        place = next(place for place in self._places if place.ticket is None)
        place.ticket, place.begun = ticket, self._clock()
        with contextlib.suppress(OSError):  # a worker that died idle: poll finds it, and the evaluation is lost
            place.pipe.send(argument)

    def poll(self, timeout_s: float) -> list[Event]:
        """Results, failures, and evaluations whose worker died or hung."""
        wait([handle for place in self._places for handle in (place.pipe, place.process.sentinel)], timeout_s)
        events = []
        for i, place in enumerate(self._places):
            event = self._heard(place)
            dead = not place.process.is_alive()
            if event is None and place.ticket is not None and self._hung(place):
                place.process.kill()
                dead = True
            if event is None and dead and place.ticket is not None:
                event = Event(place.ticket, "lost")
            if event is not None:
                place.ticket = None
                events.append(event)
            if dead:
                place.process.join()
                place.pipe.close()
                self._places[i] = self._started()
        return events

    def _hung(self, place: _Place) -> bool:
        return self._timeout_s is not None and self._clock() - place.begun > self._timeout_s

    @staticmethod
    def _heard(place: _Place) -> Event | None:
        try:
            if place.ticket is not None and place.pipe.poll():
                kind, value = place.pipe.recv()
                return Event(place.ticket, kind, value)
        except (EOFError, OSError):
            return None  # it died while it answered
        return None

    def close(self) -> None:
        """Ends the workers at once."""
        for place in self._places:
            place.process.kill()
        for place in self._places:
            place.process.join()
            place.pipe.close()


def _serve(pipe: Connection, work: Work, parent: int) -> None:
    """A worker: evaluates what it is sent, until its search is gone."""
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            argument = pipe.recv()
            pipe.send(_tried(work, argument))


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_S)
    os._exit(1)  # the search was killed, and nobody waits for the result


class OnRay:
    """Evaluates as tasks of a Ray cluster: the one that the process is connected to, else one on this machine.

    Args:
        work: What is done with each argument.
        workers: Tasks at once.

    Raises:
        MissingExtra: Ray is not installed.
    """

    def __init__(self, work: Work, workers: int) -> None:
        try:
            import ray
        except ImportError:
            raise MissingExtra("ray", "ray") from None
        self._ray, self._workers = ray, workers
        self._mine = not ray.is_initialized()
        if self._mine:
            ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, configure_logging=False)
        self._task = ray.remote(num_cpus=1, max_retries=0)(_tried)
        self._work = ray.put(work)
        self._tickets: dict[Any, int] = {}

    @property
    def idle(self) -> int:
        """Tasks that may be added."""
        return self._workers - len(self._tickets)

    def submit(self, ticket: int, argument: Any) -> None:
        """Begins a task."""
        self._tickets[self._task.remote(self._work, argument)] = ticket

    def poll(self, timeout_s: float) -> list[Event]:
        """Results and failures; a task whose worker or node died is lost."""
        if not self._tickets:
            return []
        done, _ = self._ray.wait(list(self._tickets), num_returns=1, timeout=timeout_s)
        events = []
        for task in done:
            ticket = self._tickets.pop(task)
            try:
                kind, value = self._ray.get(task)
                events.append(Event(ticket, kind, value))
            except self._ray.exceptions.RayError:
                events.append(Event(ticket, "lost"))
        return events

    def close(self) -> None:
        """Ends what runs; a cluster that was there before stays."""
        for task in self._tickets:
            self._ray.cancel(task, force=True)
        if self._mine:
            self._ray.shutdown()


def executor(
    work: Work, workers: int, *, on: str, timeout_s: float | None, clock: Callable[[], float] = time.monotonic
) -> Executor:
    """The executor that ``on`` names: ``processes`` (this process itself for one worker) or ``ray``.

    Raises:
        InputError: No such executor, or fewer than one worker.
    """
    if workers < 1:
        raise InputError(f"there must be at least one worker, not {workers}")
    if on == "ray":
        return OnRay(work, workers)
    if on != "processes":
        raise InputError(f"evaluations run on processes or on ray, not on {on!r}")
    if workers == 1 and timeout_s is None:
        return Here(work)
    return Processes(work, workers, timeout_s=timeout_s, clock=clock)
