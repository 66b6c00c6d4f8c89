"""Trains the candidates of a run: passes jobs to the trainer and turns its events into results."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from chipwise.core.record import Record
from chipwise.design.phases.halving import Job
from chipwise.design.run.budget_spec import Allowance
from chipwise.design.run.folder import RunFolder
from chipwise.design.run.trials import Candidate, TrainedRung
from chipwise.errors import ChipwiseError, DiskFull, TrainingDiverged, WorkerError
from chipwise.model.arch.arch import ArchSpec
from chipwise.training.loop.worker import TrainJob
from chipwise.training.tasks.protocol import TaskData
from chipwise.training.trainers.protocol import Trainer
from chipwise.training.trainers.train_spec import TrainSpec

MOST_THREADS = 4  # per training run: each further thread adds about 4 % to the CPU time of a step
DISK_FULL = ("disk is full", "No space left on device", "Disk quota exceeded")


def require_disk(message: str, folder: Path) -> None:
    """Ends the search if a child process failed because the disk is full, which is not a candidate's fault.

    Raises:
        DiskFull: The child process's message reports a full disk.
    """
    if any(sign in message for sign in DISK_FULL):
        raise DiskFull(folder, resumable=True)


class Trainings:
    """Trains the candidates of one run with its trainer.

    Args:
        trainer: Runs the training.
        folder: The run's folder, which keeps the state of each architecture's training.
        data: The run's task with its data.
        seed: Returns an architecture's seed for initialisation and data order; it is the same for all candidates unless
            the run was resumed with another seed.
        allowance: The budget and its unit; models trained in full are evaluated on all validation data.
        train: The run's device and precision.
        workers: Number of threads for a model that gets the whole budget; all other training uses one thread.
        on_progress: Called about once a second with the running trials and the finished share of each.
    """

    def __init__(
        self,
        trainer: Trainer,
        folder: RunFolder,
        data: TaskData,
        *,
        seed: int | Callable[[ArchSpec], int],
        allowance: Allowance,
        train: TrainSpec | None = None,
        workers: int = 1,
        on_progress: Callable[[dict[int, float]], None],
    ) -> None:
        self._trainer, self._folder, self._data = trainer, folder, data
        self._seed, self._allowance, self._on_progress = seed, allowance, on_progress
        self._train = train or TrainSpec()
        self._threads = min(workers, MOST_THREADS, os.cpu_count() or 1)

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, dict[str, object] | ChipwiseError]]:
        """Trains the candidates of ``jobs``; yields each job with its result or error as it finishes.

        Jobs that differ only in weight format, or in a denoiser's steps, share one training run.

        Raises:
            StorageError: The disk is full.
            JobsMissing: Results of training elsewhere have not come back.
        """
        seen: dict[str, Job] = {}
        for job in jobs:
            seen.setdefault(job.candidate.design.arch.as_trained().digest, job)
        first = list(seen.values())
        yield from self._together(first)
        again = [job for job in jobs if all(job is not other for other in first)]
        if again:
            yield from self.run(again)

    def _together(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, dict[str, object] | ChipwiseError]]:
        latest: dict[int, float] = {}
        for event in self._trainer.run([self._train_job(job) for job in jobs]):
            job = jobs[event.job]
            if event.kind == "progress":
                latest[job.candidate.number] = float(event.data["share"])
                self._on_progress(latest)
                continue
            latest.pop(job.candidate.number, None)
            self._on_progress(latest)
            if event.kind == "result":
                yield job, self._result(job, event.data)
            else:
                require_disk(event.data["message"], self._folder.path)
                kind = TrainingDiverged if event.data["kind"] == "TrainingDiverged" else WorkerError
                yield job, kind(event.data["message"])

    def _train_job(self, job: Job) -> TrainJob:
        from chipwise.model.nn.precision import kept_precision

        design, on, unit = job.candidate.design, self._train.trains_on, self._allowance.unit
        each = self._data.step_tokens(design.arch)
        steps = max(1, round(job.budget / each)) if unit == "tokens" else None
        precision = self._train.precision
        if precision is None and on == "cpu":
            precision = kept_precision(self._folder.path / "precision.json")
        data = self._data.data(design.arch)
        full = job.budget > self._allowance.final / 2
        return TrainJob(
            arch=design.arch,
            tokens=data.path,
            dataset=data.kind,
            recipe=dict(self._data.recipe),
            folder=str(self._folder.training(design.arch)),
            cpu_budget_s=job.budget if unit == "cpu" else None,
            gpu_budget_s=job.budget if unit == "gpu" else None,
            steps=steps,
            device="cuda" if on == "cuda" else None,
            seed=self._seed(design.arch) if callable(self._seed) else self._seed,
            formats=() if design.weights == "fp32" else (design.weights,),
            precision=precision,
            threads=self._threads if self._allowance.alone and full and on == "cpu" else 1,
            max_validation_bytes=None if full else self._data.quick,
        )

    def _result(self, job: Job, data: dict[str, object]) -> dict[str, object]:
        held = Record(data)
        quantised = held.record("quantised").data.get(job.candidate.design.weights, data["loss"])
        result = {name: value for name, value in data.items() if name != "quantised"}
        return result | {"quantised_loss": quantised, "weights": Path(held.get("weights", str)).name}


def charged(items: Iterable[Candidate], allowance: Allowance) -> float:
    """Budget used for training these trials; a training run that several trials share counts once."""
    seconds, tokens = trained(items)
    return allowance.charge(seconds=seconds, tokens=tokens)


def trained(items: Iterable[Candidate]) -> tuple[float, int]:
    """Device seconds and tokens of these trials' training; a training run that several trials share counts once."""
    longest: dict[str, TrainedRung] = {}
    for item in items:
        arch = item.design.arch.as_trained().digest
        for rung in item.rungs:
            if arch not in longest or rung.tokens > longest[arch].tokens:
                longest[arch] = rung
    return sum(rung.cpu_s for rung in longest.values()), sum(rung.tokens for rung in longest.values())
