"""Trainings of a run on a pool of worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from chipwise.core.errors import ChipwiseError, StorageError, TrainingDiverged, WorkerError
from chipwise.core.workers import WorkerPool
from chipwise.pipeline.halving import Job
from chipwise.run.folder import RunFolder
from chipwise.training.tokenizer import TokenStore
from chipwise.training.worker import TrainJob

QUICK_VALIDATION_BYTES = 100_000  # rungs before the last are judged on the first part of the validation text
DISK_FULL = ("disk is full", "No space left on device", "Disk quota exceeded")


def require_disk(message: str, folder: Path) -> None:
    """Ends the search where a child process failed because the disk is full: that is no candidate's fault.

    Raises:
        StorageError: The message is of a full disk.
    """
    if any(sign in message for sign in DISK_FULL):
        raise StorageError(
            f"{folder}: the disk is full; free some space and go on with --resume (finished trials are kept)"
        )


class PoolTrainer:
    """Runs jobs on a WorkerPool; each trial's folder keeps its checkpoints, so a job that was killed continues.

    Args:
        pool: The workers.
        folder: The run's folder.
        store: Tokenised text by vocabulary size.
        seed: Of initialisation and data order, the same for all candidates.
        final_s: The full budget, whose trainings are judged on all of the validation text.
        on_progress: Called with the running trials and their progress, about once a second.
    """

    def __init__(
        self,
        pool: WorkerPool,
        folder: RunFolder,
        store: TokenStore,
        *,
        seed: int,
        final_s: float,
        on_progress: Callable[[dict[int, dict[str, Any]]], None],
    ) -> None:
        self._pool, self._folder, self._store = pool, folder, store
        self._seed, self._final_s, self._on_progress = seed, final_s, on_progress

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, dict[str, Any] | ChipwiseError]]:
        """Each job with its result, or with why it failed, in the order in which they finish.

        Jobs that differ only in weight format share one training: the second finds it done.

        Raises:
            StorageError: The disk is full.
        """
        seen: dict[str, Job] = {}
        for job in jobs:
            seen.setdefault(job.candidate.design.arch.digest, job)
        first = list(seen.values())
        yield from self._together(first)
        again = [job for job in jobs if all(job is not other for other in first)]
        if again:
            yield from self.run(again)

    def _together(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, dict[str, Any] | ChipwiseError]]:
        under_way = {self._pool.submit(self._train_job(job).to_data()): job for job in jobs}
        latest: dict[int, dict[str, Any]] = {}
        for event in self._pool.events():
            job = under_way.get(event.job)
            if job is None:
                continue
            if event.kind == "progress":
                latest[job.candidate.number] = event.data
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
        from chipwise.nn.precision import kept_precision

        design = job.candidate.design
        return TrainJob(
            arch=design.arch,
            tokens=str(self._store.tokens_path(design.arch.vocab_size)),
            folder=str(self._folder.training(design.arch)),
            cpu_budget_s=job.cpu_s,
            seed=self._seed,
            formats=() if design.weights == "fp32" else (design.weights,),
            precision=kept_precision(self._folder.path / "precision.json"),
            max_validation_bytes=None if job.cpu_s >= self._final_s else QUICK_VALIDATION_BYTES,
        )

    def _result(self, job: Job, data: dict[str, Any]) -> dict[str, Any]:
        quantised = data.pop("quantised")
        weights = job.candidate.design.weights
        result = {**data, "quantised_bits_per_byte": quantised.get(weights, data["bits_per_byte"])}
        result["weights"] = Path(data["weights"]).name
        return result
