"""Trains in tasks of a Ray cluster: a cluster of the user, or one that is started on this machine.

A task receives the text and the state from which it continues, and returns weights and state. Nodes therefore need no
shared disk, but they need chipwise and torch. If a worker or node dies, its job is submitted again; it continues from
its last checkpoint if it runs on the same node as before.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from chipwise.core.digest import digest
from chipwise.core.files import read_mapping, storage, write_atomic, write_json
from chipwise.core.record import Record
from chipwise.core.workers import Event
from chipwise.errors import ChipwiseError, MissingExtra, Unsupported, line_of
from chipwise.training.loop.worker import Job, TrainJob
from chipwise.training.trainers.jobs import STABLE
from chipwise.training.trainers.local import LocalTrainer, ended, judged_here
from chipwise.training.trainers.protocol import BaseTrainer, Setup

TRIES = 4  # submissions of a job whose worker dies again and again
LOOK_S = 1.0
ANSWER_S = 10.0  # seconds to wait for the cluster's first answer


Failed = dict[str, str]  # class and message of an exception


@dataclass(frozen=True)
class Trained:
    """Output of a task: the job's result, result file, weights, and the state for a longer job."""

    values: dict[str, object]
    training: dict[str, object]
    weights: bytes
    stable: bytes | None


@dataclass
class _Running:
    place: int
    job: TrainJob
    tries: int = 1


class RayTrainer(BaseTrainer):
    """Runs jobs as Ray tasks, each with one core or one GPU.

    Args:
        setup: ``on`` is ``ray`` or the cluster's address ``ray://host:port``.

    Raises:
        MissingExtra: Ray is not installed.
        Unsupported: No cluster answers at the address.
    """

    accounts: ClassVar[frozenset[str]] = frozenset({"cpu", "gpu", "tokens"})
    whole: ClassVar[bool] = False

    def __init__(self, setup: Setup) -> None:
        try:
            import ray
        except ImportError:
            raise MissingExtra("ray", "ray") from None
        self._ray, self._setup = ray, setup
        self._here = LocalTrainer(Setup(on="local", folder=setup.folder, workers=1))
        self._mine, self._task = False, None
        self._texts: dict[str, object] = {}
        if setup.on != "ray":
            self._connect()

    def _connect(self) -> None:
        """Connects to the cluster, or starts Ray on this machine; once per process."""
        ray, on = self._ray, self._setup.on
        if not ray.is_initialized():
            _require_answer(on)
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")  # a busy machine exceeds the default of 30 s
            quiet: dict[str, object] = {"log_to_driver": False, "configure_logging": False}
            try:
                if on == "ray":
                    self._start(quiet)
                else:
                    ray.init(address=on, **quiet)
            except Exception as error:  # the library raises plain Exception if a start takes too long
                why = " ".join(str(error).split())[:300]
                said = "Ray does not start here" if on == "ray" else f"no Ray cluster answers at {on}"
                raise Unsupported(f"train.on: {said} ({why})") from None
            self._mine = True
        needs = {"num_gpus": 1} if self._setup.device == "cuda" else {}
        self._task = ray.remote(num_cpus=1, max_retries=0, **needs)(train_task)

    def _start(self, options: Mapping[str, object]) -> None:
        """Starts a separate Ray cluster on this machine; tries twice, because another process may take its ports."""
        for last in (False, True):
            try:
                self._ray.init(address="local", num_cpus=self._setup.workers, include_dashboard=False, **options)
                return
            except Exception:  # the library raises plain Exception if a start takes too long
                if last:
                    raise
                self._ray.shutdown()

    def run(self, jobs: Sequence[Job]) -> Iterator[Event]:
        """Runs jobs and yields their events; see :class:`~chipwise.training.trainers.protocol.Trainer`."""
        left: dict[object, _Running] = {}
        for place, job in enumerate(jobs):
            assert isinstance(job, TrainJob)
            if ended(job):
                yield from judged_here(self._here, place, job)
                continue
            if self._task is None:
                self._connect()
            left[self._submit(job)] = _Running(place, job)
        try:
            while left:
                done, _ = self._ray.wait(list(left), num_returns=1, timeout=LOOK_S)
                for task in done:
                    running = left.pop(task)
                    try:
                        found = self._ray.get(task)
                    except self._ray.exceptions.RayError as error:
                        if running.tries < TRIES and not isinstance(error, self._ray.exceptions.RayTaskError):
                            left[self._submit(running.job)] = replace(running, tries=running.tries + 1)
                            continue
                        said = f"the job's Ray worker failed {running.tries} times: {line_of(error, -1)}"
                        yield Event(job=running.place, kind="failed", data={"kind": "WorkerError", "message": said})
                        continue
                    if isinstance(found, Trained):
                        yield Event(job=running.place, kind="result", data=_kept(running.job, found))
                    else:
                        yield Event(job=running.place, kind="failed", data=found)
        finally:
            for task in left:
                self._ray.cancel(task, force=True)

    def _submit(self, job: TrainJob) -> object:
        content = Path(job.tokens).read_bytes()
        name = hashlib.sha256(content).hexdigest()
        if name not in self._texts:
            self._texts[name] = self._ray.put(content)
        stable = Path(job.folder) / STABLE
        state = stable.read_bytes() if stable.exists() else None
        assert self._task is not None
        return self._task.remote(job.to_data(), name, self._texts[name], state)

    def close(self) -> None:
        """Cancels this trainer's tasks; a cluster that existed before keeps running."""
        self._here.close()
        if self._mine:
            self._ray.shutdown()


def place_on_node(data: dict[str, object], text: str, stable: bytes | None) -> Path:
    """Path of the folder on a node for a job of this user, with this text and the state from which to continue."""
    base = Path(tempfile.gettempdir()) / f"chipwise-ray-{os.getuid() if hasattr(os, 'getuid') else 0}"
    return base / digest([data, text, None if stable is None else hashlib.sha256(stable).hexdigest()])


def train_task(data: dict[str, object], text: str, tokens: bytes, stable: bytes | None) -> Trained | Failed:
    """Trains on a node; returns the task's output, or the error.

    The task works in a folder on the node. The folder's name depends only on user, job, text and state, so a second try
    on this node can continue from the checkpoint of the first try. The folder is deleted if the task succeeds.
    """
    import torch

    torch.set_num_threads(1)
    place = place_on_node(data, text, stable)
    job = TrainJob.from_data({**data, "folder": str(place), "tokens": str(place / "tokens.npz")})
    try:
        with storage(place):
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomic(place / "tokens.npz", tokens)
            if stable is not None and not (place / STABLE).exists():
                write_atomic(place / STABLE, stable)
        values = job.run(lambda update: None)
    except ChipwiseError as error:
        return {"kind": type(error).__name__, "message": str(error)}
    weights, state = Path(Record.of(values).get("weights", str)), place / STABLE
    found = Trained(
        values={**values, "weights": weights.name},
        training=read_mapping(place / job.result_name),
        weights=weights.read_bytes(),
        stable=state.read_bytes() if state.exists() else None,
    )
    shutil.rmtree(place, ignore_errors=True)
    return found


def _kept(job: TrainJob, found: Trained) -> dict[str, object]:
    """Writes a task's output to the run's folder; returns the same result as a job on this machine."""
    folder = Path(job.folder)
    path = folder / Record.of(found.values).get("weights", str)
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if found.stable is not None:
            write_atomic(folder / STABLE, found.stable)
        write_atomic(path, found.weights)
    write_json(folder / job.result_name, {**found.training, "weights": str(path)})
    return {**found.values, "weights": str(path)}


def _require_answer(on: str) -> None:
    """Checks that a server listens at ``ray://HOST:PORT``; without this check, Ray would wait silently for minutes.

    Raises:
        Unsupported: No server listens there.
    """
    host, _, port = on.removeprefix("ray://").rpartition(":")
    if not on.startswith("ray://") or not host or not port.isdecimal():
        return  # the library reports what is wrong
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S):
            pass
    except (OSError, OverflowError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise Unsupported(f"train.on: no Ray cluster answers at {on} ({why})") from None
