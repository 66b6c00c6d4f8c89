"""Defines the protocol of data sets for training, and the table of data set classes.

The trainer contains no code for a particular domain. A data set provides the batch of a step, the loss of a batch, and
a model's quality on held-out data. ``tokens.TokenData`` is the data set class for text, and ``arrays.LabelledArrays``
that for arrays with labels. A data set is stored in a file that any worker can read; a :class:`DataFile` names the kind
of the data set and the path of the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.core.tables import Table
from chipwise.errors import InputError
from chipwise.model.arch.arch import ArchSpec
from chipwise.training.data.recipe import Recipe

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


Split = Literal["validation", "test"]

DATASETS = Table(
    "kind of data set",
    "chipwise.datasets",
    {
        "tokens": "chipwise.training.data.tokens:load_tokens",
        "arrays": "chipwise.training.data.arrays:LabelledArrays.load",
        "images": "chipwise.training.data.images.labelled:LabelledImages.load",
        "flipped-images": "chipwise.training.data.images.labelled:FlippedImages.load",
        "flows": "chipwise.training.tasks.diffusion.dataset:FlowImages.load",
        "picture-questions": "chipwise.training.tasks.multimodal.dataset:PictureQuestions.load",
        "requests": "chipwise.training.tasks.ranking.dataset:RequestData.load",
        "transcripts": "chipwise.training.tasks.transcripts.dataset:TranscribedSpectrograms.load",
        "spectrograms": "chipwise.training.tasks.speech.dataset:LabelledSpectrograms.load",
    },
)
"""``load(path) -> Dataset`` by kind."""


Module = TypeVar("Module", bound="nn.Module")
PartT = TypeVar("PartT")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """Location and kind of the data of a training run."""

    path: str
    kind: str = "tokens"  # a key of DATASETS

    def load(self) -> Dataset:
        """Loads the data set.

        Raises:
            UnknownName: There is no data set of this kind.
            DataError: The file is missing or broken.
        """
        found: Dataset = DATASETS.load(self.kind)(Path(self.path))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutScore:
    """Quality of a model on held-out data."""

    loss: float  # the task's metric as a loss to minimise, such as bits per byte or an error rate
    perplexity: float | None = None  # per token; for text only


@runtime_checkable
class HoldsWeights(Protocol):
    """Data sets that provide fixed weights for models, such as the decoder of latents.

    Models contain these weights, but training does not change them.
    """

    def held(self, arch: ArchSpec) -> Mapping[str, AnyArray]:
        """The fixed weights by their names in the model's torch module; empty if there are none."""
        ...


class Dataset(Protocol):
    """Data for training and evaluation. Each batch is determined by its index and the seed.

    A batch is a tuple of tensors whose first axis is the example, so that a batch can be split.
    """

    @property
    def identity(self) -> Sequence[object]:
        """Plain values that identify the data; they are part of a training run's identity."""
        ...

    def require_fit(self, arch: ArchSpec) -> None:
        """Checks that models of ``arch`` fit the data.

        Raises:
            InputError: ``arch`` does not fit the data; the message says what differs.
        """
        ...

    def step_tokens(self, arch: ArchSpec, recipe: Recipe) -> int:
        """Positions in the batch of one step: text tokens, or positions after the model's stem."""
        ...

    def batch(self, arch: ArchSpec, recipe: Recipe, number: int, *, seed: int) -> tuple[Tensor, ...]:
        """Batch ``number``, with ``recipe.batch_windows`` examples; the tensors of model inputs come first."""
        ...

    def loss(self, model: nn.Module, batch: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """Mean loss of a batch, differentiable; matrix products run in ``dtype``."""
        ...

    def shown_loss(self, loss: float) -> float:
        """Converts a batch's mean loss to the unit of training curves."""
        ...

    def judge(
        self, model: Any, *, split: Split = "validation", most: int | None = None, dtype: torch.dtype | None = None
    ) -> HeldOutScore:
        """Quality of ``model`` on ``split``.

        If ``most`` is given, only the first ``most`` bytes of text, or the first ``most`` examples, are used.
        ``dtype`` is the number format of matrix products; default: FP32.
        """
        ...


def with_held(model: Module, data: Dataset) -> Module:
    """Loads the fixed weights of ``data`` into a new ``model``, and returns it."""
    import torch

    if isinstance(data, HoldsWeights):
        held = data.held(model.arch)  # type: ignore[arg-type]
        model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in held.items()}, strict=False)
    return model


def fitting(part: object, kind: type[PartT], message: str) -> PartT:
    """Returns ``part`` (a model's stem or head) if it has the type ``kind`` that the data needs.

    Raises:
        InputError: ``part`` has a different type; ``message`` is the error text.
    """
    if not isinstance(part, kind):
        raise InputError(message)
    return part
