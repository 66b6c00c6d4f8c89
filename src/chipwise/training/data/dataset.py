"""The protocol of data sets for training, and the table of their kinds.

The trainer contains no code for a particular domain. It gets the batch of a step, the loss of a batch, and the quality
of a model on held-out data from a data set. Text windows are one kind (``tokens.TokenData``), arrays with labels
another (``arrays.LabelledArrays``). A data set is a file that any worker can read; a :class:`DataFile` names its kind
and path.
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
    """Location and kind of a training's data."""

    path: str
    kind: str = "tokens"  # a key of DATASETS

    def load(self) -> Dataset:
        """Loads the data set.

        Raises:
            UnknownName: No such kind is known.
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
    """Data with fixed weights that a model contains but does not learn, such as a decoder's."""

    def held(self, arch: ArchSpec) -> Mapping[str, AnyArray]:
        """Fixed tensors by their names in the model's torch module; empty if there are none."""
        ...


class Dataset(Protocol):
    """Data for training and evaluation. Deterministic: the batch number and the seed determine a batch.

    A batch is a tuple of tensors whose first axis is the example, so that a batch can be split.
    """

    @property
    def identity(self) -> Sequence[object]:
        """Plain values that identify this data; they are part of a training's identity."""
        ...

    def require_fit(self, arch: ArchSpec) -> None:
        """Checks that ``arch`` can learn from this data.

        Raises:
            InputError: It cannot; the message says what differs.
        """
        ...

    def step_tokens(self, arch: ArchSpec, recipe: Recipe) -> int:
        """Positions in the batch of one step: text tokens, or positions after the model's stem."""
        ...

    def batch(self, arch: ArchSpec, recipe: Recipe, number: int, *, seed: int) -> tuple[Tensor, ...]:
        """Batch number ``number``: ``recipe.batch_windows`` examples, inputs first."""
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

        ``most`` limits the evaluation to the first so many bytes of text, or examples. ``dtype`` is FP32 unless given.
        """
        ...


def with_held(model: Module, data: Dataset) -> Module:
    """A new model with the weights of ``model`` and the fixed weights of ``data``."""
    import torch

    if isinstance(data, HoldsWeights):
        held = data.held(model.arch)  # type: ignore[arg-type]
        model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in held.items()}, strict=False)
    return model


def fitting(part: object, kind: type[PartT], message: str) -> PartT:
    """Returns ``part``, a model's stem or head, after checking that its type is ``kind``, which the data needs.

    Raises:
        InputError: Its type is different; ``message`` is the error text.
    """
    if not isinstance(part, kind):
        raise InputError(message)
    return part
