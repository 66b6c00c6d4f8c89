"""Data for pruning models with a stem: images, sounds, questions about images, rankings.

A data set calls the model and computes the loss (:class:`chipwise.training.data.dataset.Dataset`); a pruned model is
compared with the original by the squared error of the head's outputs. Squared errors add up over blocks with
independent errors, as the choice from single-block losses assumes. For healing, matching outputs works as well as
matching distributions.

References:
    Errors of outputs in distillation: Kim et al. 2021, arXiv:2105.08919. Labels in addition: Touvron et al. 2021
    (DeiT), arXiv:2012.12877.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chipwise.core.arrays import AnyArray
from chipwise.core.digest import digest
from chipwise.core.files import build, storage, write_json
from chipwise.deploy.export.hf import load_pretrained, require_folder
from chipwise.design.phases.one_model import TaskScore, opened, promises_of_model
from chipwise.design.run.folder import PROMISES
from chipwise.design.run.spec import RunSpec
from chipwise.design.shrink.forward import Bound, Weights
from chipwise.design.shrink.material import OnPart
from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantize import NEAREST, Packing
from chipwise.model.kinds.table import form_of
from chipwise.model.nn.precision import Precision, torch_dtype
from chipwise.training.data.dataset import Dataset
from chipwise.training.data.recipe import Recipe
from chipwise.training.tasks.protocol import Exported

CALIBRATION_EXAMPLES = 256
_HELD_SEED, _FIRST = 7, 1_000_000  # batches for scoring pruned models, far from those with which training begins

Tensors = Sequence[Tensor]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answered:
    """A batch of the data set, and the outputs of the original's head, one row per example."""

    tensors: Tensors
    given: Tensor


class TaskExamples:
    """A few batches of the training data, as :class:`chipwise.design.shrink.material.Examples`."""

    def __init__(self, data: Dataset, batches: Sequence[Tensors]) -> None:
        self._data, self._batches = data, batches

    def passes(self, arch: ArchSpec, weights: Weights) -> Iterator[tuple[None, Callable[[], object]]]:
        """Yields for each batch None (no mask, because all positions are valid), and a function that runs the model."""
        for batch in self._batches:
            yield None, functools.partial(_run, self._data, Bound(arch, weights), batch, torch.float32)


class TaskComparison:
    """A :class:`chipwise.design.shrink.material.Comparison` on augmented inputs, which are the same for all models.

    Args:
        data: The data set.
        recipe: Training recipe, which gives the number of examples per batch.
        arch: The original's architecture.
        weights: The original's weights.
        precision: Number format of matrix products.
    """

    def __init__(
        self, data: Dataset, recipe: Recipe, arch: ArchSpec, weights: Weights, *, precision: Precision
    ) -> None:
        self._data, self._recipe, self._arch, self._weights = data, recipe, arch, weights
        self._dtype = torch_dtype(precision)
        self._spread: list[Answered] = []

    @property
    def identity(self) -> str:
        """Digest of the data set."""
        return digest(list(self._data.identity))

    def spread(self, batches: int) -> Sequence[Answered]:
        """A few fixed batches on which all pruned models are scored."""
        for number in range(len(self._spread), batches):
            self._spread.append(self._answered(_FIRST + number, seed=_HELD_SEED))
        return self._spread[:batches]

    def lesson(self, step: int, *, tokens: int, seed: int) -> Answered:
        """Training batch number ``step`` of the data set."""
        return self._answered(step, seed=seed)

    def size(self, batch: Answered) -> int:
        """Number of examples in a batch."""
        return len(batch.tensors[0])

    def distance(self, arch: ArchSpec, weights: Weights, batch: Answered) -> Tensor:
        """Mean squared error of the head's outputs, relative to the variance of the original's outputs."""
        return self._both(arch, weights, batch)[0]

    def loss(self, arch: ArchSpec, weights: Weights, batch: Answered) -> Tensor:
        """The distance, plus the task's own loss on the batch."""
        apart, own = self._both(arch, weights, batch)
        return apart + own

    def _both(self, arch: ArchSpec, weights: Weights, batch: Answered) -> tuple[Tensor, Tensor]:
        given, own = _run(self._data, Bound(arch, weights), batch.tensors, self._dtype)
        return (given - batch.given).square().mean() / batch.given.var(), own

    def _answered(self, number: int, *, seed: int) -> Answered:
        tensors = self._data.batch(self._arch, self._recipe, number, seed=seed)
        with torch.no_grad():
            given, _ = _run(self._data, Bound(self._arch, self._weights), tensors, self._dtype)
        return Answered(tensors=tensors, given=given)


class TaskMaterial:
    """A :class:`chipwise.design.shrink.material.Material` with the data of a run file's task.

    Args:
        source: The original's folder.
        run: The run file that describes the data.
        folder: Folder for the data.

    Raises:
        InputError: The model cannot be pruned, or does not fit the data.
        Unsupported: The model generates images in steps.
    """

    def __init__(self, source: Path, run: RunSpec, folder: Path) -> None:
        require_folder(source, text=False)
        self.arch, arrays = load_pretrained(source)
        form = form_of(self.arch)
        if not form.shrinks:
            raise Unsupported(
                f"{source}: models of {run.task} cannot be cut; cut a model that classifies images or sounds, answers "
                "questions about images or ranks candidates"
            )
        self.weights = {name: torch.from_numpy(value) for name, value in arrays.items()}
        self.run = run
        self.data = opened(run, folder, self.arch)
        file = self.data.data(self.arch)
        self._dataset = file.load()
        self._dataset.require_fit(self.arch)
        self._recipe = build(Recipe, self.data.recipe)
        self.about = {"task": run.task, "data": digest(list(self._dataset.identity))}
        self.held_out = f"{run.task_settings.metric.title}, validation data"

    @property
    def examples(self) -> TaskExamples:
        """The first batches: a few hundred examples together."""
        count = -(-CALIBRATION_EXAMPLES // self._recipe.batch_windows)
        batches = [self._dataset.batch(self.arch, self._recipe, _FIRST - 1 - i, seed=_HELD_SEED) for i in range(count)]
        return TaskExamples(self._dataset, batches)

    def comparison(self, weights: Weights, state: Path, *, precision: Precision, on_part: OnPart) -> TaskComparison:
        """The original's results on the training data."""
        return TaskComparison(self._dataset, self._recipe, self.arch, weights, precision=precision)

    def judge(self, arch: ArchSpec, weights: Weights, original: Weights, state: Path, *, precision: Precision) -> float:
        """The task's loss on validation data, such as the error rate of a classifier."""
        return float(self._dataset.judge(Bound(arch, weights), most=None, dtype=torch_dtype(precision)).loss)

    def write(self, design: Design, weights: Mapping[str, AnyArray], folder: Path) -> None:
        """Writes the files that a winner's folder of this task contains."""
        with storage(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self.data.ship(Exported(design=design, weights=weights, folder=folder.parent), folder, {})

    def score(
        self, design: Design, weights: Mapping[str, AnyArray], folder: Path, packing: Packing = NEAREST
    ) -> TaskScore:
        """Score of the exported graph on the test data, in the task's metric; ``folder`` is for temporary files."""
        item = Exported(design=design, weights=weights, folder=folder, packing=packing)
        return TaskScore.of(self.run, self.data.losses(item, split="test"), "test")

    def promise(self, design: Design, score: TaskScore, folder: Path) -> None:
        """Writes ``chipwise.json``, from which other commands read the folder's design and task."""
        write_json(folder / PROMISES, promises_of_model(self.run, design, score.value))


def _run(data: Dataset, model: Any, batch: Tensors, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Runs a model on a batch; returns the outputs of its head, one row per example, and the data set's loss."""
    loss = data.loss(model, batch, dtype)
    return torch.cat([each.float().flatten() for each in model.given]), loss
