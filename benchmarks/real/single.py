"""One training run of a design that is given by its choices, and one search of a changed run file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from chipwise.design.report.record import RunRecord
from chipwise.design.run.spec import RunSpec
from chipwise.model.space.designs import design_of
from chipwise.training.data.recipe import Recipe
from chipwise.training.loop.evaluate import load_model
from chipwise.training.loop.trainer import TrainResult, train
from chipwise.training.tasks.protocol import TaskData
from finished import finished


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A design after its training run."""

    result: TrainResult
    data: Any  # the task's, as it was trained on
    parameters: int
    test_loss: float


def opened(spec: RunSpec, folder: Path) -> TaskData:
    """The run's task with its data, prepared in ``folder``."""
    task = spec.task_settings.open(spec.data, base=Path(spec.folder), folder=folder, space=spec.space)
    task.prepare()
    return task


def trained(
    choices: Mapping[str, Any],
    spec: RunSpec,
    task: TaskData,
    place: Path,
    *,
    seed: int,
    steps: int | None = None,
    cpu_budget_s: float | None = None,
) -> Trained:
    """Trains a design with the task's recipe, for a number of steps or for CPU seconds, and judges it on test data."""
    arch = design_of(choices, spec=replace(spec.space, head_size=(choices["head_size"],)), name=place.name).arch
    data, recipe = task.data(arch).load(), Recipe(**task.recipe)
    result = train(arch, data, cpu_budget_s=cpu_budget_s, steps=steps, seed=seed, folder=place, recipe=recipe)
    return Trained(
        result=result,
        data=data,
        parameters=arch.parameters(),
        test_loss=data.judge(load_model(arch, result.weights), split="test").loss,
    )


def epochs(found: Trained) -> float:
    """How often a training run on text read its training text."""
    return float(found.result.tokens / (len(found.data.train) - 1))


def searched(file: Path, changes: Mapping[str, Any], own: Path) -> RunRecord:
    """Runs or resumes the search of ``file`` with ``changes``, written to ``own``; its folder is named like ``own``."""
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **changes}))
    return finished(own, own.with_suffix(""))
