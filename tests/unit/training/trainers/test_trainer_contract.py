"""Every built-in trainer keeps the contract. CUDA devices are stood in for by this machine's cores."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from chipwise.api.testing.trainer_suite import TrainerSuite
from chipwise.training.loop.worker import TrainJob
from chipwise.training.trainers.cuda import CudaTrainer, Gpu
from chipwise.training.trainers.jobs import JobsTrainer, run_job
from chipwise.training.trainers.local import LocalTrainer
from chipwise.training.trainers.protocol import Setup, Trainer

FAKE = (Gpu(device="cpu", name="fake", free_bytes=8e9),)


class TestLocal(TrainerSuite):
    def make(self, folder: Path) -> Trainer:
        return LocalTrainer(Setup(on="local", folder=folder, workers=1))


class TestJobs(TrainerSuite):
    def make(self, folder: Path) -> Trainer:
        return JobsTrainer(Setup(on="jobs", folder=folder))

    def run_elsewhere(self, folder: Path) -> None:
        for line in (folder / "jobs" / "todo.txt").read_text().split():
            run_job(folder / "jobs" / line)


class TestCuda(TrainerSuite):
    def make(self, folder: Path) -> Trainer:
        return CudaTrainer(Setup(on="cuda", folder=folder, device="cuda"), devices=FAKE)

    def job_of(self, job: TrainJob) -> TrainJob:
        return dataclasses.replace(job, device="cuda")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray = pytest.importorskip("ray", reason="needs the extra ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()


@pytest.mark.usefixtures("cluster")
class TestRay(TrainerSuite):
    def make(self, folder: Path) -> Trainer:
        from chipwise.training.trainers.ray_cluster import RayTrainer

        return RayTrainer(Setup(on="ray", folder=folder, workers=2))
