"""Data for cutting a model: the protocol that text and other tasks implement.

Everything in the stages that depends on the domain is in a :class:`Material`: the model, examples for computing
importance, the comparison with the original, the loss on held-out data, and writing files for the ecosystem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from chipwise.core.arrays import AnyArray
from chipwise.design.shrink.forward import Weights
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.nn.precision import Precision

Batch = Any  # indices of texts, or tensors of a data set; only the comparison that returned it reads it
OnPart = Callable[[int, int], None]  # amount done, total
PARTS = ("train", "validation")


class Examples(Protocol):
    """Batches for computing importance."""

    def passes(self, arch: ArchSpec, weights: Weights) -> Iterable[tuple[Tensor | None, Callable[[], object]]]:
        """For each batch the valid positions (B, T) (None: all), and a function that runs the model on it."""
        ...


class Comparison(Protocol):
    """The original on the training data: reference and teacher of cuts. Deterministic."""

    @property
    def identity(self) -> str:
        """Identity of this data."""
        ...

    def spread(self, batches: int) -> Sequence[Batch]:
        """About this many batches, the same for scoring all cuts."""
        ...

    def lesson(self, step: int, *, tokens: int, seed: int) -> Batch:
        """The batch of a training step; ``tokens`` limits the tokens of a batch of texts, padding included."""
        ...

    def size(self, batch: Batch) -> int:
        """Number of examples in a batch."""
        ...

    def distance(self, arch: ArchSpec, weights: Weights, batch: Batch) -> Tensor:
        """Distance of a cut from the original, differentiable; 0 if they agree."""
        ...

    def loss(self, arch: ArchSpec, weights: Weights, batch: Batch) -> Tensor:
        """Training loss: the distance to the original, plus the task's own loss if there are labels."""
        ...


class Material(Protocol):
    """A pretrained model with data to cut it on. Deterministic."""

    @property
    def arch(self) -> ArchSpec:
        """The original's architecture."""
        ...

    @property
    def weights(self) -> Weights:
        """The original's weights by the names of the torch module."""
        ...

    @property
    def about(self) -> Mapping[str, object]:
        """Identity of this data, as JSON values."""
        ...

    @property
    def held_out(self) -> str:
        """Name of the loss that :meth:`judge` returns."""
        ...

    @property
    def examples(self) -> Examples:
        """Batches for computing importance."""
        ...

    def comparison(self, weights: Weights, state: Path, *, precision: Precision, on_part: OnPart) -> Comparison:
        """The original on the training data; its ``weights`` are ordered by importance.

        Its outputs may be stored in files in ``state``.
        """
        ...

    def judge(self, arch: ArchSpec, weights: Weights, original: Weights, state: Path, *, precision: Precision) -> float:
        """Loss of a cut on held-out data (lower is better): its distance from the original, or the task's loss."""
        ...

    def write(self, design: Design, weights: Mapping[str, AnyArray], folder: Path) -> None:
        """Writes the files for the ecosystem, such as a Hugging Face folder."""
        ...


def mean_distance(comparison: Comparison, arch: ArchSpec, weights: Weights, batches: int) -> float:
    """Mean distance of a cut from the original over the examples of about this many batches."""
    chosen = comparison.spread(batches)
    sizes = [comparison.size(batch) for batch in chosen]
    found = [float(comparison.distance(arch, weights, batch)) for batch in chosen]
    return float(np.average(found, weights=sizes))
