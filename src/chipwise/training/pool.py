"""Several training workers at once, and what becomes of a job when its worker dies."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from chipwise.core.errors import WorkerError
from chipwise.training.worker import Job

_STARTS = 3  # deaths before the first sign of life, after which the pool gives up


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What a worker said of a job: progress (fields of Update), result (what the job's ``run`` gave), or
    failed (``kind`` of error and ``message``)."""

    job: int
    kind: Literal["progress", "result", "failed"]
    data: dict[str, Any]


@dataclass(slots=True)
class _Worker:
    process: subprocess.Popen[str]
    job: int | None = None
    heard_at: float = 0.0
    ready: bool = False
    last_words: deque[str] = field(default_factory=lambda: deque(maxlen=15))


class WorkerPool:
    """Runs jobs on ``count`` child processes, first come first served.

    The children end by themselves when this process ends, however it ends. Use as a context manager, or call
    :meth:`close`.

    Args:
        count: Workers that train at the same time.
        silence_s: Seconds without a sign of life after which a worker counts as hung.
    """

    def __init__(self, count: int, *, silence_s: float = 600.0) -> None:
        self._silence_s = silence_s
        self._heard: queue.SimpleQueue[tuple[_Worker, dict[str, Any] | None]] = queue.SimpleQueue()
        self._waiting: deque[tuple[int, Job]] = deque()
        self._submitted = 0
        self._failed_starts = 0
        self._closed = False
        self._workers = [self._start() for _ in range(count)]

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def unfinished(self) -> int:
        """Jobs that wait or run."""
        return len(self._waiting) + sum(worker.job is not None for worker in self._workers)

    def submit(self, job: Job) -> int:
        """Puts ``job`` in the queue; its number appears in its events."""
        if self._closed:
            raise WorkerError("the pool is closed")
        self._submitted += 1
        self._waiting.append((self._submitted, job))
        self._hand_out()
        return self._submitted

    def events(self, timeout_s: float | None = None) -> Iterator[Event]:
        """What happens, as it happens, until no job is unfinished or nothing happened for ``timeout_s``.

        Raises:
            WorkerError: Workers cannot be started at all.
        """
        quiet_since = time.monotonic()
        while self.unfinished and not self._closed:
            try:
                worker, message = self._heard.get(timeout=0.25)
            except queue.Empty:
                yield from self._end_hung()
                if timeout_s is not None and time.monotonic() - quiet_since >= timeout_s:
                    return
                continue
            if worker not in self._workers:
                continue  # the late words of one that was replaced
            worker.heard_at = time.monotonic()
            event = self._died(worker) if message is None else self._understand(worker, message)
            self._hand_out()
            if event is not None:
                quiet_since = time.monotonic()
                yield event

    def close(self) -> None:
        """Ends all workers; unfinished jobs keep their checkpoints."""
        self._closed = True
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.wait()
            for stream in (worker.process.stdin, worker.process.stdout, worker.process.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError, ValueError):
                        stream.close()
        self._workers = []

    def _start(self) -> _Worker:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "chipwise.training.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C is for the parent, which then closes the pool
            )
        except OSError as error:
            raise WorkerError(f"a training worker cannot be started: {error.strerror}") from None
        worker = _Worker(process, heard_at=time.monotonic())
        threading.Thread(target=self._listen, args=(worker,), daemon=True).start()
        threading.Thread(target=self._overhear, args=(worker,), daemon=True).start()
        return worker

    def _listen(self, worker: _Worker) -> None:
        assert worker.process.stdout is not None
        with contextlib.suppress(ValueError, OSError):
            for line in worker.process.stdout:
                try:
                    message = json.loads(line)
                except json.JSONDecodeError:
                    message = {"event": "error", "kind": "WorkerError", "message": f"the worker answered {line[:80]!r}"}
                self._heard.put((worker, message))
        self._heard.put((worker, None))

    def _overhear(self, worker: _Worker) -> None:
        assert worker.process.stderr is not None
        with contextlib.suppress(ValueError, OSError):
            worker.last_words.extend(worker.process.stderr)

    def _hand_out(self) -> None:
        for worker in self._workers:
            if self._waiting and worker.job is None and worker.ready:
                number, job = self._waiting.popleft()
                worker.job, worker.heard_at = number, time.monotonic()
                assert worker.process.stdin is not None
                with contextlib.suppress(BrokenPipeError):  # its death is heard by the listener
                    worker.process.stdin.write(job.to_line(number) + "\n")
                    worker.process.stdin.flush()

    def _understand(self, worker: _Worker, message: dict[str, Any]) -> Event | None:
        kind = message.pop("event", None)
        message.pop("job", None)
        if kind == "ready":
            worker.ready, self._failed_starts = True, 0
            return None
        if worker.job is None:
            return None
        number = worker.job
        if kind == "progress":
            return Event(job=number, kind="progress", data=message)
        worker.job = None
        if kind == "result":
            return Event(job=number, kind="result", data=message["result"])
        return Event(job=number, kind="failed", data=message)

    def _died(self, worker: _Worker) -> Event | None:
        """Puts a new worker in the place of a dead one, and says what its job came to."""
        code = worker.process.wait()
        words = "".join(worker.last_words).strip()
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= _STARTS:
                self.close()
                raise WorkerError(f"training workers do not start (exit code {code}): {words[-500:] or 'no message'}")
        self._workers[self._workers.index(worker)] = self._start()
        if worker.job is None:
            return None
        reason = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        hint = "; out of memory?" if code == -9 else ""
        text = f"the training worker died ({reason}{hint})" + (f": {words[-300:]}" if words else "")
        return Event(job=worker.job, kind="failed", data={"kind": "WorkerError", "message": text})

    def _end_hung(self) -> Iterator[Event]:
        for place, worker in enumerate(self._workers):
            if worker.job is not None and time.monotonic() - worker.heard_at > self._silence_s:
                worker.process.kill()
                worker.process.wait()
                self._workers[place] = self._start()
                text = f"the training worker was silent for {self._silence_s:.0f} s and was ended"
                yield Event(job=worker.job, kind="failed", data={"kind": "WorkerError", "message": text})
