"""Child processes that run jobs. They read jobs from standard input and write events to standard output as JSON lines.

A worker ends when its input closes, even during a job, so it never outlives the process that started it. A worker that
dies or hangs is replaced; only its current job fails. Jobs and results are data; nothing in them is executed.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, TypeVar

from chipwise.errors import ChipwiseError, MeasurementError, WorkerError

Message = dict[str, Any]
Request = TypeVar("Request", bound=Mapping[str, object])
Report = Callable[..., None]
"""Callback by which a job reports progress; its keyword arguments are the fields of a progress event."""

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"
"""The environment variable that makes torch allocate memory in huge pages, if Linux supports them."""
_FAILED_STARTS = 3  # consecutive failed starts after which the pool gives up
_LOOK_S = 0.25  # interval between checks for silent workers


# -- the parent's side -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of a job: ``progress`` (with the job's report), ``result`` (with its return value) or ``failed`` (with
    the error's ``kind`` and ``message``). ``died`` is true if the worker died or hung, and false if
    the job raised an error.
    """

    job: int
    kind: Literal["progress", "result", "failed"]
    data: Any
    died: bool = False


@dataclass(slots=True, eq=False)
class _Worker:
    process: subprocess.Popen[str]
    heard_at: float
    job: int | None = None
    ready: bool = False
    complaints: threading.Thread | None = None  # thread that reads the worker's standard error
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=15))


class WorkerPool:
    """Runs jobs on ``count`` child processes, in order of submission. Close it, or use it as a context manager.

    Args:
        command: Command that starts a worker; the worker must call :func:`serve`.
        count: Number of workers.
        name: Name of a worker in messages.
        silence_s: A worker with a job counts as hung after this many seconds without a message; never if None.
        setup: Data sent to each worker before its first job; see ``start`` of :func:`serve`.
        environment: Environment variables that differ from this process's.
        echo: Whether to copy the workers' output to this process's standard error.
        clock: A monotonic clock in seconds.
    """

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        *,
        name: str = "worker",
        silence_s: float | None = None,
        setup: Mapping[str, object] | None = None,
        environment: Mapping[str, str] = ONE_THREAD,
        echo: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command, self._name, self._silence_s = list(command), name, silence_s
        self._setup, self._environment, self._echo, self._clock = dict(setup or {}), environment, echo, clock
        self._messages: queue.SimpleQueue[tuple[_Worker, Message | None]] = queue.SimpleQueue()
        self._waiting: deque[tuple[int, Message]] = deque()
        self._submitted = self._failed_starts = 0
        self._closed = False
        self._workers: list[_Worker] = []
        for _ in range(count):
            self._workers.append(self._start())

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def running(self) -> list[int]:
        """The numbers that identify the running jobs (see :meth:`submit`), sorted."""
        return sorted(worker.job for worker in self._workers if worker.job is not None)

    @property
    def unfinished(self) -> int:
        """Number of jobs that are waiting or running."""
        return len(self._waiting) + len(self.running)

    def submit(self, job: Mapping[str, object]) -> int:
        """Puts a job in the queue and returns the job's number, which its events have in their field ``job``."""
        if self._closed:
            raise WorkerError(f"the pool of {self._name}s is closed")
        self._submitted += 1
        self._waiting.append((self._submitted, dict(job)))
        self._hand_out()
        return self._submitted

    def events(self) -> Iterator[Event]:
        """Yields events until all jobs are finished.

        Raises:
            WorkerError: No worker can be started.
        """
        while self.unfinished and not self._closed:
            yield from self.poll(_LOOK_S)

    def poll(self, timeout_s: float) -> list[Event]:
        """Returns the events so far. If there are none yet, waits at most ``timeout_s`` for the first one.

        Raises:
            WorkerError: No worker can be started.
        """
        found: list[Event] = []
        until = time.monotonic() + timeout_s
        while not self._closed:
            pause = 0.0 if found else min(_LOOK_S, max(0.0, until - time.monotonic()))
            try:
                worker, message = self._messages.get(timeout=pause)
            except queue.Empty:
                found += self._end_silent()
                if found or time.monotonic() >= until:
                    break
                continue
            if worker not in self._workers:
                continue  # a late message of a worker that was replaced
            worker.heard_at = self._clock()
            event = self._replace_dead(worker) if message is None else self._read(worker, message)
            found += [] if event is None else [event]
            self._hand_out()
        return found

    def close(self) -> None:
        """Ends all workers at once."""
        self._closed = True
        for worker in self._workers:
            _kill(worker.process)
        for worker in self._workers:
            _release(worker.process)
        self._workers = []

    def _start(self) -> _Worker:
        try:
            process = _started(self._command, self._environment, f"a {self._name}")
        except WorkerError:
            self.close()
            raise
        worker = _Worker(process, heard_at=self._clock())
        worker.complaints = threading.Thread(target=self._keep_last_lines, args=(worker,), daemon=True)
        worker.complaints.start()
        threading.Thread(target=self._listen, args=(worker,), daemon=True).start()
        _send(process, self._setup)
        return worker

    def _listen(self, worker: _Worker) -> None:
        assert worker.process.stdout is not None
        with contextlib.suppress(ValueError, OSError):
            for line in worker.process.stdout:
                message = _parsed(line)
                unreadable = {"event": "error", "kind": "WorkerError", "message": f"unreadable answer: {line[:80]!r}"}
                self._messages.put((worker, message or unreadable))
        self._messages.put((worker, None))

    def _keep_last_lines(self, worker: _Worker) -> None:
        assert worker.process.stderr is not None
        with contextlib.suppress(ValueError, OSError):
            for line in worker.process.stderr:
                worker.last_lines.append(line)
                if self._echo:
                    sys.stderr.write(line)

    def _hand_out(self) -> None:
        for worker in self._workers:
            able = (
                worker.job is None and worker.ready and worker.process.poll() is None
            )  # a worker may die between jobs
            if self._waiting and able:
                worker.job, job = self._waiting.popleft()
                worker.heard_at = self._clock()
                _send(worker.process, {**job, "job": worker.job})

    def _read(self, worker: _Worker, message: Message) -> Event | None:
        kind = message.pop("event", None)
        message.pop("job", None)
        if kind == "ready":
            worker.ready, self._failed_starts = True, 0
        if worker.job is None or kind == "ready":
            return None
        number = worker.job
        if kind == "progress":
            return Event(job=number, kind="progress", data=message)
        worker.job = None
        if kind == "result":
            return Event(job=number, kind="result", data=message.get("result"))
        return Event(job=number, kind="failed", data=message)

    def _replace_dead(self, worker: _Worker) -> Event | None:
        """Replaces a dead worker with a new one; returns the failure event of the dead worker's job."""
        code = worker.process.wait()
        if worker.complaints is not None:
            worker.complaints.join(1.0)  # the last lines may not have arrived yet
        lines = _last("".join(worker.last_lines))
        _release(worker.process)
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= _FAILED_STARTS:
                self.close()
                raise WorkerError(f"{self._name}s do not start ({_death(code)}){lines or ': no message'}")
        self._workers[self._workers.index(worker)] = self._start()
        return self._lost(worker, f"the {self._name} died ({_death(code)}){lines}")

    def _end_silent(self) -> list[Event]:
        found = []
        for place, worker in enumerate(self._workers):
            limit = self._silence_s
            if worker.job is not None and limit is not None and self._clock() - worker.heard_at > limit:
                _kill(worker.process)
                _release(worker.process)
                self._workers[place] = self._start()
                event = self._lost(worker, f"the {self._name} sent no message for {limit:.0f} s and was ended")
                found += [event] if event is not None else []
        return found

    @staticmethod
    def _lost(worker: _Worker, text: str) -> Event | None:
        if worker.job is None:
            return None
        return Event(job=worker.job, kind="failed", data={"kind": "WorkerError", "message": text}, died=True)


def ask_once(
    command: Sequence[str],
    request: Mapping[str, object],
    *,
    timeout_s: float,
    name: str = "worker",
    environment: Mapping[str, str] = ONE_THREAD,
) -> Message:
    """Runs ``command``, sends it one request, and returns its reply; both are JSON objects.

    Raises:
        WorkerError: The process hung, died, failed, or gave an unreadable reply.
    """
    process = _started(command, environment, f"the {name}")
    try:
        answer, complaint = process.communicate(json.dumps(request), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise WorkerError(f"no answer within {timeout_s:g} s; the {name} was ended") from None
    finally:
        if process.poll() is None:
            _kill(process)
            process.communicate()
    if process.returncode:
        died = WorkerError(f"the {name} died ({_death(process.returncode)}){_last(complaint)}")
        died.ended_with = process.returncode
        raise died
    reply = _parsed(answer)
    if not reply:
        raise WorkerError(f"the {name} gave an unreadable answer: {answer[:100]!r}")
    return reply


def answer_of(module: str, request: Mapping[str, object], *, timeout_s: float, name: str) -> Message:
    """Runs ``python -m module``, which must use :func:`answer_once`, and returns its reply to ``request``.

    Raises:
        WorkerError: See :func:`ask_once`.
        MeasurementError: The reply is an error.
    """
    reply = ask_once([sys.executable, "-m", module], request, timeout_s=timeout_s, name=name)
    if "error" in reply:
        raise MeasurementError(str(reply["error"]))
    return reply


class Companion:
    """A process that runs beside this one until it is closed, or until this process ends.

    It reads a request (one JSON object) from standard input, prints its ``greeting`` (another JSON object), and ends
    when its standard input closes.

    Raises:
        WorkerError: The process cannot be started, ended before its greeting, or printed something else.
    """

    def __init__(self, command: Sequence[str], request: Mapping[str, object], *, name: str) -> None:
        self._name, self._lines = name, deque[str](maxlen=3)
        self._process = _started(command, ONE_THREAD, name)
        self._reader = threading.Thread(target=self._lines.extend, args=(self._process.stderr,), daemon=True)
        self._reader.start()
        _send(self._process, dict(request))
        self.greeting = _parsed(next(iter(self._process.stdout or ()), ""))
        if not self.greeting:
            self.close()
            raise WorkerError(f"{name} did not start{_last(''.join(self._lines))}")

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def close(self) -> None:
        """Ends the process."""
        _kill(self._process)
        self._process.wait()
        self._reader.join(1.0)
        _release(self._process)


def accompany(answer: Callable[[Message], Message]) -> NoReturn:
    """The child's side of :class:`Companion`: prints the ``answer`` to the request, and ends when the parent has ended.

    Output of libraries goes to standard error; a :class:`ChipwiseError` becomes the greeting's ``error``.
    """
    _reply(answer, _parsed(sys.stdin.readline()))
    sys.stdin.read()
    os._exit(0)


def answer_once(answer: Callable[[Request], Mapping[str, object]]) -> int:
    """The child's side of :func:`ask_once`: reads the request from standard input and prints the reply.

    Output of libraries goes to standard error; a :class:`ChipwiseError` becomes the reply's ``error``. Returns 0.
    """
    _reply(answer, json.load(sys.stdin))
    return 0


def _reply(answer: Callable[[Request], Mapping[str, object]], request: Request) -> None:
    reply_to = os.dup(1)
    os.dup2(2, 1)  # output of libraries must not mix with the reply
    try:
        reply = answer(request)
    except ChipwiseError as error:
        reply = {"error": str(error)}
    with os.fdopen(reply_to, "w") as stream:
        stream.write(json.dumps(reply) + "\n")


def _started(command: Sequence[str], environment: Mapping[str, str], name: str) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C goes only to the parent, which then ends its workers
        )
    except OSError as error:
        raise WorkerError(f"{name} cannot be started: {error.strerror}") from None


def _send(process: subprocess.Popen[str], message: Message) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # the reading thread notices that the worker died
        process.stdin.write(json.dumps(message) + "\n")
        process.stdin.flush()


def _kill(process: subprocess.Popen[str]) -> None:
    """Kills the process and its children, unless it has ended."""
    if process.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _release(process: subprocess.Popen[str]) -> None:
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.close()


def _death(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"killed by signal {-code}, {name}" + ("; out of memory?" if code == -signal.SIGKILL else "")


def _last(text: str) -> str:
    """The last lines that a worker printed, formatted for the end of a message."""
    lines = " | ".join(line.strip() for line in text.strip().splitlines()[-3:])
    return f": {lines[-300:]}" if lines else ""


# -- the worker's side -----------------------------------------------------------------------------------------------


def serve(
    run: Callable[[Message, Report], object], *, start: Callable[[Message], None] = lambda setup: None
) -> NoReturn:
    """Runs the jobs that arrive on standard input; when it closes, exits at once.

    Args:
        run: Runs a job, given its fields and a progress callback; returns a result that JSON can store.
        start: Called with the pool's ``setup`` before the first job; if it fails, the process ends.
    """
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries must not mix with events
    jobs: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def watch() -> None:
        for line in sys.stdin:
            jobs.put(_parsed(line))
        os._exit(0)  # nobody is left to read a result

    def send(event: str, number: object, **values: object) -> None:
        try:
            output.write(json.dumps({"event": event, "job": number, **values}) + "\n")
            output.flush()
        except BrokenPipeError:
            os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    start(jobs.get())
    send("ready", None)
    while True:
        job = jobs.get()
        number = job.pop("job", None)
        try:
            send("result", number, result=run(job, lambda number=number, **values: send("progress", number, **values)))
        except ChipwiseError as error:
            send("error", number, kind=type(error).__name__, message=str(error))
        except MemoryError:
            send("error", number, kind="MemoryError", message="the job ran out of memory")
        except Exception as error:  # an error in one job must not affect the others
            send("error", number, kind=type(error).__name__, message=f"{type(error).__name__}: {error}")


def _parsed(line: str) -> Message:
    """The JSON object in a line; empty if the line contains no JSON object."""
    try:
        data = json.loads(line)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}
