"""Protocols of the data with which a model is pruned. There is one implementation for text and one for other tasks.

A :class:`Material` contains everything that differs between tasks: the model, examples for computing importance, the
comparison with the original, the loss on held-out data, and how to write the model's files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from chipwise.core.arrays import AnyArray
from chipwise.design.shrink.forward import Weights
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.nn.precision import Precision

Batch = Any  # indices of texts, or tensors of a data set; only the comparison that returned a batch reads it
OnPart = Callable[[int, int], None]  # amount done, total


class Examples(Protocol):
    """Batches for computing importance."""

    def passes(self, arch: ArchSpec, weights: Weights) -> Iterable[tuple[Tensor | None, Callable[[], object]]]:
        """Yields for each batch a mask (B, T) of valid positions (None: all), and a function that runs the model."""
        ...


class Comparison(Protocol):
    """The original's results on the training data: the reference and teacher for pruned models.

    It must be deterministic.
    """

    @property
    def identity(self) -> str:
        """Digest that identifies this data."""
        ...

    def spread(self, batches: int) -> Sequence[Batch]:
        """About ``batches`` batches on which all pruned models are scored."""
        ...

    def lesson(self, step: int, *, tokens: int, seed: int) -> Batch:
        """The batch of a training step; a batch of texts has at most ``tokens`` tokens including padding."""
        ...

    def size(self, batch: Batch) -> int:
        """Number of examples in a batch."""
        ...

    def distance(self, arch: ArchSpec, weights: Weights, batch: Batch) -> Tensor:
        """Differentiable distance of a pruned model from the original; 0 if their outputs are equal."""
        ...

    def loss(self, arch: ArchSpec, weights: Weights, batch: Batch) -> Tensor:
        """Training loss: the distance from the original, plus the task's loss if there are labels."""
        ...


class Material(Protocol):
    """A pretrained model, and the data for pruning and healing it. It must be deterministic."""

    @property
    def arch(self) -> ArchSpec:
        """The original's architecture."""
        ...

    @property
    def weights(self) -> Weights:
        """The original's weights, named as in the torch module."""
        ...

    @property
    def about(self) -> Mapping[str, object]:
        """Identifies this data in stored results, as JSON values."""
        ...

    @property
    def held_out(self) -> str:
        """Name of the loss that :meth:`judge` returns, for reports."""
        ...

    @property
    def examples(self) -> Examples:
        """Batches for computing importance."""
        ...

    def comparison(self, weights: Weights, state: Path, *, precision: Precision, on_part: OnPart) -> Comparison:
        """The original's results on the training data, with its ``weights`` ordered by importance.

        The results may be stored as files in the folder ``state``.
        """
        ...

    def judge(self, arch: ArchSpec, weights: Weights, original: Weights, state: Path, *, precision: Precision) -> float:
        """Loss of a pruned model on held-out data (lower is better): distance from the original, or the task's loss."""
        ...

    def write(self, design: Design, weights: Mapping[str, AnyArray], folder: Path) -> None:
        """Writes the model's files for other tools, such as a Hugging Face folder."""
        ...


@torch.no_grad()
def mean_distance(comparison: Comparison, arch: ArchSpec, weights: Weights, batches: int) -> float:
    """Mean distance of a pruned model from the original per example, over about ``batches`` batches."""
    chosen = comparison.spread(batches)
    sizes = [comparison.size(batch) for batch in chosen]
    found = [float(comparison.distance(arch, weights, batch)) for batch in chosen]
    return float(np.average(found, weights=sizes))
