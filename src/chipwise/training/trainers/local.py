"""Trains on this machine's cores, in worker processes of one thread each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from chipwise.core.workers import Event, WorkerPool
from chipwise.training.loop.worker import Job, TrainJob, training_pool
from chipwise.training.trainers.protocol import BaseTrainer, Setup


class LocalTrainer(BaseTrainer):
    """Runs jobs in a pool of worker processes. Job folders contain checkpoints, so a killed job can continue.

    Args:
        setup: ``workers`` is the number of processes.
        pool: A pool to use instead of :func:`~chipwise.training.loop.worker.training_pool`'s; the trainer closes it.
    """

    accounts: ClassVar[frozenset[str]] = frozenset({"cpu", "tokens"})
    whole: ClassVar[bool] = True

    def __init__(self, setup: Setup, *, pool: WorkerPool | None = None) -> None:
        self._workers, self._pool = setup.workers, pool

    def run(self, jobs: Sequence[Job]) -> Iterator[Event]:
        """Runs jobs and yields their events; see :class:`~chipwise.training.trainers.protocol.Trainer`."""
        if not jobs:
            return
        if self._pool is None:
            self._pool = training_pool(self._workers)
        yield from pool_events(self._pool, jobs)

    def close(self) -> None:
        """Stops the workers immediately."""
        if self._pool is not None:
            self._pool.close()


def ended(job: TrainJob) -> bool:
    """Whether this machine has the result of a job, regardless of where the job ran."""
    return (Path(job.folder) / job.result_name).exists()


def judged_here(trainer: LocalTrainer, place: int, job: TrainJob) -> Iterator[Event]:
    """Finishes on this machine a job that was trained elsewhere and has :func:`ended`; yields its events.

    Training is not repeated, because the result exists; only the job's weight formats are evaluated.
    """
    if job.device is not None:  # training on a GPU uses bf16 unless stated otherwise
        precision = job.precision or "bf16"
        job = replace(job, device=None, precision=precision, cpu_budget_s=job.gpu_budget_s, gpu_budget_s=None)
    for event in trainer.run([job]):
        yield Event(job=place, kind=event.kind, data=event.data, died=event.died)


def pool_events(pool: WorkerPool, jobs: Sequence[Job]) -> Iterator[Event]:
    """Submits ``jobs`` to a pool, and yields their events; skips events of earlier jobs."""
    places = {pool.submit(job.to_data()): place for place, job in enumerate(jobs)}
    for event in pool.events():
        if event.job in places:
            yield Event(job=places[event.job], kind=event.kind, data=event.data, died=event.died)
