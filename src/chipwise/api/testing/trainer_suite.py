"""TrainerSuite: the contract of trainers, checked on training runs of a few steps.

Subclass it in a test module and return a trainer from ``make``; pytest then runs every check on it::

    class TestMyTrainer(TrainerSuite):
        def make(self, folder):
            return MyTrainer(Setup(on="mine", folder=folder, workers=2))

A trainer must give the same results as the same training runs on this machine, even if workers die.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.api.testing.specs import toy_arch
from chipwise.core.workers import Event
from chipwise.errors import JobsMissing
from chipwise.training.loop.worker import TrainJob
from chipwise.training.trainers.protocol import Trainer

STEPS, MORE_STEPS = 12, 24
VOCABULARY = 20
RECIPE = {"window_tokens": 16, "batch_windows": 4, "warmup_steps": 4}
DIVERGES = {**RECIPE, "matrix_rate": 1e30, "table_rate": 1e30}
BUDGETS = {"cpu", "gpu", "tokens"}


def write_text(path: Path) -> Path:
    """Writes a file of tokens that a toy model can learn: a ramp with noise, in the format of ``TokenStore``."""
    random = np.random.default_rng(0)
    tokens = (np.arange(6_000) + random.integers(0, 2, 6_000)) % (VOCABULARY - 1) + 1
    parts: dict[str, Any] = {"sizes": np.array([VOCABULARY, 6_000])}
    for name, size in (("train", 6_000), ("validation", 800), ("test", 800)):
        stream = tokens[:size].astype(np.uint16)
        stream[::40] = 0  # entries of 39 tokens, each after a separator
        parts[name] = np.append(stream, np.uint16(0))
    parts |= {name: np.full(800 // 40, 39, np.int64) for name in ("validation_bytes", "test_bytes")}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez(file, **parts)
    return path


def toy_job(folder: Path, name: str = "a", *, steps: int = STEPS, **changes: Any) -> TrainJob:
    """A job that trains a toy model in ``folder/trainings/<name>``; ``changes`` replace its fields."""
    tokens = folder / "corpus" / f"tokens-{VOCABULARY}.npz"
    if not tokens.exists():
        write_text(tokens)
    job = TrainJob(
        arch=toy_arch(name=name, d_model={"a": 16, "b": 32}.get(name, 48)),
        tokens=str(tokens),
        folder=str(folder / "trainings" / name),
        steps=steps,
        seed=3,
        precision="fp32",
        recipe=RECIPE,
    )
    return dataclasses.replace(job, **changes)


def plain_result(job: TrainJob, folder: Path) -> dict[str, Any]:
    """Runs ``job`` in this process, in ``folder``, without a trainer, and returns the result."""
    return dataclasses.replace(job, folder=str(folder)).run(lambda update: None)


class TrainerSuite:
    """Checks that every trainer must pass.

    Override :meth:`make`, and :meth:`run_elsewhere` if jobs are run outside the trainer.
    """

    def make(self, folder: Path) -> Trainer:
        """A new trainer for a run's folder, which can run two jobs at the same time."""
        raise NotImplementedError("override `make`")

    def job_of(self, job: TrainJob) -> TrainJob:
        """The job in the form that this trainer expects; override it to name devices."""
        return job

    def run_elsewhere(self, folder: Path) -> None:
        """Completes the jobs of a trainer that raised ``JobsMissing``."""
        raise NotImplementedError("override `run_elsewhere`: this trainer raised JobsMissing")

    def finish(self, trainer: Trainer, folder: Path, jobs: Sequence[TrainJob]) -> dict[int, Event]:
        """Runs ``jobs`` in as many rounds as the trainer needs; maps each job's index to its last event."""
        ended: dict[int, Event] = {}
        for _ in range(4):
            try:
                for event in trainer.run([self.job_of(job) for job in jobs]):
                    if event.kind != "progress":
                        ended[event.job] = event
                return ended
            except JobsMissing:
                self.run_elsewhere(folder)
        raise AssertionError("the trainer keeps raising JobsMissing: it must read the results that came back")

    def test_it_starts_nothing_for_nothing_and_states_what_it_accounts_for(self, tmp_path: Path) -> None:
        """Without jobs there are no events. ``accounts`` contains ``tokens``, and only known kinds of budgets."""
        with self.make(tmp_path) as trainer:
            assert list(trainer.run([])) == []
            assert "tokens" in trainer.accounts, "every training run counts its tokens: add 'tokens' to `accounts`"
            assert trainer.accounts <= BUDGETS, f"unknown budgets in `accounts`: {trainer.accounts - BUDGETS}"

    def test_results_are_those_of_training_here_and_a_fault_of_one_spares_the_others(self, tmp_path: Path) -> None:
        """A job has the same loss and weights as when it runs in this process; its files are in the job's folder.

        A training run that diverges gives a failed event with the reason, not an exception, and does not affect other
        jobs.
        """
        jobs = [
            toy_job(tmp_path, "a", formats=("int8",)),
            toy_job(tmp_path, "diverges", recipe=DIVERGES),
            toy_job(tmp_path, "b"),
        ]
        with self.make(tmp_path) as trainer:
            ended = self.finish(trainer, tmp_path, jobs)
        assert sorted(ended) == [0, 1, 2], f"each job must end once, identified by its index; got {sorted(ended)}"
        assert ended[1].kind == "failed", "a training run that diverges must give a failed event"
        assert ended[1].data["kind"] == "TrainingDiverged", ended[1].data
        assert "finite" in ended[1].data["message"]
        for place in (0, 2):
            job, event = jobs[place], ended[place]
            assert event.kind == "result", event.data
            known = plain_result(job, tmp_path / "plain" / job.arch.name)
            assert event.data["loss"] == known["loss"], "the result differs from training here"
            assert event.data["quantised"] == known["quantised"]
            assert (event.data["steps"], event.data["tokens"]) == (STEPS, known["tokens"])
            weights = Path(event.data["weights"])
            assert weights.parent == Path(job.folder), f"weights must be in the job's folder, not in {weights.parent}"
            assert weights.read_bytes() == Path(known["weights"]).read_bytes(), (
                "the weights differ from those of training here"
            )
            assert (Path(job.folder) / self.job_of(job).result_name).exists()

    def test_nothing_is_trained_twice_and_longer_trainings_go_on(self, tmp_path: Path) -> None:
        """A job with a result is not trained again; for another weight format, it is only evaluated.

        The job's folder keeps the state before the learning rate decays. A longer run that continues from this state
        gives the same weights as an uninterrupted run.
        """
        with self.make(tmp_path) as trainer:
            (first,) = self.finish(trainer, tmp_path, [toy_job(tmp_path)]).values()
            assert first.kind == "result", first.data
        with self.make(tmp_path) as trainer:
            (again,) = self.finish(trainer, tmp_path, [toy_job(tmp_path, formats=("int4",))]).values()
            assert again.data["loss"] == first.data["loss"]
            assert again.data["spent_cpu_s"] == 0.0, "trained twice: look for the result in the job's folder first"
            assert set(again.data["quantised"]) == {"int4"}
            job = toy_job(tmp_path, steps=MORE_STEPS)
            assert (Path(job.folder) / "stable.safetensors").exists(), (
                "the state from which a longer training run continues is lost"
            )
            (longer,) = self.finish(trainer, tmp_path, [job]).values()
        known = plain_result(job, tmp_path / "plain")
        assert longer.data["loss"] == known["loss"]
        assert Path(longer.data["weights"]).read_bytes() == Path(known["weights"]).read_bytes()
