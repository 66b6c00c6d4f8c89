"""Trainings of a run: a full disk ends the search and is no candidate's failure; who gets threads."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from toy_run import PLAN, SPACE, SPEC, FakeTrainer, Limits, metrics, two_bytes

from chipwise.core.workers import Event
from chipwise.design.phases import trainings
from chipwise.design.phases.choosing import Chooser
from chipwise.design.phases.halving import Halving, Job
from chipwise.design.phases.screening import screen
from chipwise.design.phases.trainings import Trainings
from chipwise.design.run.budget_spec import Allowance
from chipwise.design.run.trials import Trials, choice_labels
from chipwise.design.strategies.study import Study
from chipwise.errors import StorageError, TrainingDiverged, WorkerError
from chipwise.training.data.dataset import DataFile
from chipwise.training.loop.worker import TrainJob
from chipwise.training.trainers.local import LocalTrainer
from chipwise.training.trainers.protocol import Setup

FULL = [
    ("StorageError", "runs/x/stable.safetensors: the disk is full; free some space and go on with --resume"),
    ("OSError", "OSError: [Errno 28] No space left on device"),
    ("SafetensorError", "SafetensorError: I/O error: No space left on device (os error 28)"),
    ("OSError", "OSError: [Errno 122] Disk quota exceeded"),
]


class FailingPool:
    """A pool whose jobs all fail in one way."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind, self.message, self.jobs = kind, message, 0

    def submit(self, job) -> int:
        self.jobs += 1
        return self.jobs

    def events(self):
        for number in range(1, self.jobs + 1):
            data = {"kind": self.kind, "message": self.message}
            yield Event(job=number, kind="failed", data=data)
        self.jobs = 0


def halving_of(trials: Trials, trainer) -> Halving:
    screened = screen(SPACE, metrics, SPEC.limits, seed=0, draws=500)
    chooser = Chooser(
        SPACE,
        screened,
        metrics,
        SPEC.goals,
        SPEC.limits,
        final=9.0,
        bytes_per_token=two_bytes,
        seed=0,
    )
    return Halving(
        trials,
        PLAN,
        chooser=chooser,
        allowance=SPEC.allowance,
        trainer=trainer,
        measurer=Limits(trials),
        predict=lambda row: {"tpot_p50": [1.0, 1.0, 1.0]},
        workers=1,
    )


@pytest.fixture
def trials() -> Trials:
    study = Study(None, name="toy", directions=["minimize", "minimize"], identity="toy", choices=choice_labels(SPACE))
    return Trials(study, SPEC, SPACE)


def trainer(tmp_path, kind: str, message: str) -> Trainings:
    folder = SimpleNamespace(path=tmp_path, training=lambda arch: tmp_path / arch.digest)
    data = SimpleNamespace(
        data=lambda arch: DataFile(path=str(tmp_path / "tokens")), step_tokens=lambda arch: 8, recipe={}, quick=1000
    )
    trainer = LocalTrainer(Setup(on="local", folder=tmp_path), pool=FailingPool(kind, message))
    return Trainings(trainer, folder, data, seed=0, allowance=SPEC.allowance, on_progress=lambda running: None)


@pytest.mark.parametrize(("kind", "message"), FULL)
def test_a_full_disk_stops_the_search_and_fails_no_candidate(trials, tmp_path, kind, message) -> None:
    with pytest.raises(StorageError, match="disk is full; free some space and go on with --resume"):
        halving_of(trials, trainer(tmp_path, kind, message)).explore([])
    assert trials.all()
    assert all(item.alive and item.notes.reason is None for item in trials.all())
    again = FakeTrainer()  # after room was made
    resumed = halving_of(trials, again)
    resumed.explore([])
    assert len([item for item in trials.all() if item.after(0)]) == PLAN[0].count
    assert all(item.alive for item in trials.all())


@pytest.mark.parametrize(("kind", "error"), [("TrainingDiverged", TrainingDiverged), ("RuntimeError", WorkerError)])
def test_other_failures_are_the_candidates_own(trials, tmp_path, kind, error) -> None:
    halving = halving_of(trials, trainer(tmp_path, kind, "what went wrong"))
    halving.explore([])
    assert all(item.notes.reason == "what went wrong" for item in trials.all())


@pytest.mark.parametrize(
    ("alone", "budget", "cores", "threads"),
    [(True, 9.0, 8, 4), (True, 9.0, 2, 2), (True, 9.0, None, 1), (True, 3.0, 8, 1), (False, 9.0, 8, 1)],
)
def test_only_the_training_that_takes_the_budget_is_shared_by_threads(
    monkeypatch, tmp_path, alone: bool, budget: float, cores: int | None, threads: int
) -> None:
    """At most four, one for each core; a first training and one of several finalists have one."""
    monkeypatch.setattr(trainings.os, "cpu_count", lambda: cores)
    folder = SimpleNamespace(path=tmp_path, training=lambda arch: tmp_path / arch.digest)
    data = SimpleNamespace(
        data=lambda arch: DataFile(path=str(tmp_path / "tokens")), step_tokens=lambda arch: 8, recipe={}, quick=1000
    )
    allowance = Allowance(unit="cpu", total=12.0, final=9.0, whole=True, alone=alone)
    made = Trainings(
        SimpleNamespace(), folder, data, seed=0, allowance=allowance, workers=6, on_progress=lambda running: None
    )
    candidate = SimpleNamespace(design=SPACE.design(SPACE.sample(1, np.random.default_rng(0))[0]))
    job = made._train_job(Job(candidate=candidate, budget=budget, rung=0))
    assert job.threads == threads
    assert TrainJob.from_data(job.to_data()) == job
    assert ("threads" in job.to_data()) is (threads > 1)  # older jobs keep their form
