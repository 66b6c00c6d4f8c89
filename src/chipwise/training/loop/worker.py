"""A child process that trains: ``python -m chipwise.training.loop.worker``. Its protocol is that of
``core/workers.py``."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from chipwise.core.digest import plain
from chipwise.core.files import build
from chipwise.core.workers import Message, Report, WorkerPool, serve
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.io import from_data, to_data
from chipwise.training.data.dataset import DataFile
from chipwise.training.data.recipe import Recipe, budget_name
from chipwise.training.loop.evaluate import load_model, quantised, read
from chipwise.training.supernet.job import SupernetJob

if TYPE_CHECKING:
    from chipwise.training.data.dataset import Dataset
    from chipwise.training.loop.progress import Update
    from chipwise.training.loop.trainer import TrainResult

SILENCE_S = 600.0  # a worker without a message for so long counts as hung


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainJob:
    """A job: a training run and evaluations of its weights. The budget is in CPU seconds, GPU seconds or steps."""

    arch: ArchSpec
    tokens: str  # file of the data set
    folder: str  # folder for the run's state and weights
    cpu_budget_s: float | None = None
    seed: int
    formats: tuple[str, ...] = ()  # weight formats to evaluate, such as int8 and int4
    max_validation_bytes: int | None = None
    start: str | None = None  # safetensors file of the initial weights
    precision: Literal["bf16", "fp32"] | None = None  # of matrix products; measured by the worker unless given
    recipe: Mapping[str, object] = dataclasses.field(default_factory=dict)  # fields of Recipe to change
    steps: int | None = None
    gpu_budget_s: float | None = None
    device: str | None = None  # torch device, such as cuda:1; the plain loop on one core unless given
    compiler: str | None = None  # backend of torch.compile, if ``device`` is given
    device_share: float = 1.0  # share of the device, if several training runs share it
    threads: int = 1  # threads that share each step of the plain loop
    dataset: str = "tokens"  # kind of the data set: a row of chipwise.training.data.dataset.DATASETS

    def to_data(self) -> dict[str, object]:
        """The job as JSON values."""
        fields = {f.name: plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        if self.dataset == "tokens":
            del fields["dataset"]  # jobs of text keep their older JSON form
        if self.threads == 1:
            del fields["threads"]
        return {**fields, "arch": to_data(self.arch)}

    @classmethod
    def from_data(cls, data: dict[str, object]) -> TrainJob:
        """Reads the output of :meth:`to_data`."""
        fields = dict(data)
        return build(cls, {**fields, "arch": from_data(fields.get("arch"))})

    @property
    def result_name(self) -> str:
        """Name of the result file, which is written last."""
        budget = next(b for b in (self.steps, self.cpu_budget_s, self.gpu_budget_s) if b is not None)
        return f"result-{budget_name(budget, counted=self.steps is not None)}.json"

    def run(self, on_progress: Callable[[Update], None]) -> dict[str, object]:
        """Trains and evaluates; returns the result as JSON values. Calls ``on_progress`` about once a second."""
        data = DataFile(path=self.tokens, kind=self.dataset).load()
        result = self._train(data, on_progress)
        values: dict[str, object] = plain(result)
        values["quantised"] = {
            weight_format: data.judge(
                quantised(load_model(self.arch, result.weights), weight_format), most=self.max_validation_bytes
            ).loss
            for weight_format in self.formats
        }
        return values

    def _train(self, data: Dataset, on_progress: Callable[[Update], None]) -> TrainResult:
        from chipwise.training.loop.trainer import train

        recipe = build(Recipe, self.recipe, field="recipe")
        if self.device is None:
            return train(
                self.arch,
                data,
                cpu_budget_s=self.cpu_budget_s,
                steps=self.steps,
                seed=self.seed,
                folder=self.folder,
                recipe=recipe,
                start=self.start,
                precision=self.precision,
                threads=self.threads,
                on_progress=on_progress,
                max_validation_bytes=self.max_validation_bytes,
            )
        from chipwise.training.loop.accelerated import Execution, train_accelerated

        return train_accelerated(
            self.arch,
            data,
            execution=Execution(
                device=self.device,
                precision=self.precision,
                compiler=self.compiler,
                device_share=self.device_share,
            ),
            steps=self.steps,
            gpu_budget_s=self.gpu_budget_s,
            seed=self.seed,
            folder=self.folder,
            recipe=recipe,
            start=None if self.start is None else read(Path(self.start)),
            on_progress=on_progress,
            max_validation_bytes=self.max_validation_bytes,
        )


class Job(Protocol):
    """Protocol of a worker's job: the training of one model, or of a supernet (``training/supernet/job.py``)."""

    def to_data(self) -> dict[str, object]:
        """The job as JSON values."""
        ...

    def run(self, on_progress: Callable[[Update], None]) -> dict[str, object]:
        """Runs the job; returns the result as JSON values. Calls ``on_progress`` about once a second."""
        ...


def read_job(data: dict[str, object]) -> Job:
    """Reads a job from the output of its ``to_data``."""
    fields = dict(data)
    if fields.pop("kind", None) == "supernet":
        return SupernetJob.from_data(fields)
    return TrainJob.from_data(fields)


def training_pool(count: int) -> WorkerPool:
    """Starts ``count`` worker processes, each for one training run at a time; submit jobs as ``job.to_data()``."""
    command = [sys.executable, "-m", "chipwise.training.loop.worker"]
    return WorkerPool(command, count, name="training worker", silence_s=SILENCE_S)


def run_job(data: Message, report: Report) -> dict[str, object]:
    """Runs the job in a message and reports the fields of each ``Update``."""
    return read_job(data).run(lambda update: report(**dataclasses.asdict(update)))


def limit_threads(_setup: Message) -> None:
    """Gives the worker one thread."""
    import torch

    torch.set_num_threads(1)


def main() -> None:
    """Runs the jobs that arrive on standard input."""
    serve(run_job, start=limit_threads)


if __name__ == "__main__":
    main()
