"""Base class of data sets stored as arrays in one ``.npz`` file, and the data set of inputs with class labels.

The file of labelled data contains the inputs (uint8 or float32) and labels of each part (training, validation, test),
and the mean and standard deviation for scaling the inputs. Models output one logit per class.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import AnyArray, Float64Array
from chipwise.core.digest import digest
from chipwise.errors import InputError
from chipwise.model.arch.arch import ArchSpec
from chipwise.training.data.array_file import read_arrays, write_arrays
from chipwise.training.data.dataset import HeldOutScore, Split
from chipwise.training.data.recipe import Recipe

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


PARTS = ("train", "validation", "test")
ALL = slice(None)
Scales = tuple[NDArray[np.float32], NDArray[np.float32]]  # mean and deviation
Part = tuple[AnyArray, NDArray[np.int64]]  # inputs (n, …) and labels (n,)


class ArrayDataset(ABC):
    """Base class of data sets stored as arrays; see :class:`chipwise.training.data.dataset.Dataset`.

    A subclass defines the arrays of its file (:meth:`fields`, :meth:`of_fields`), the inputs of a model
    (:meth:`examples`), and the score of a model's outputs (:meth:`metric`).
    """

    __slots__ = ()
    rows: ClassVar[int] = 256  # examples per batch when a model is evaluated
    packed: ClassVar[bool] = True  # whether the file is compressed; False for noisy data, which hardly shrinks

    @abstractmethod
    def fields(self) -> Mapping[str, AnyArray]:
        """The arrays of the file, by name."""

    @classmethod
    @abstractmethod
    def of_fields(cls, file: Mapping[str, AnyArray]) -> Self:
        """Builds the data set from the arrays of a file; raises KeyError if an array is missing."""

    @abstractmethod
    def sizes(self) -> Iterator[tuple[int, int]]:
        """Yields the number of entries and the number of bytes of each part, in the order of ``PARTS``."""

    @abstractmethod
    def count(self, split: Split) -> int:
        """Number of examples in a part."""

    @abstractmethod
    def examples(self, split: Split, rows: slice = ALL) -> tuple[AnyArray, ...]:
        """Model inputs for the examples of a part, one array (n, …) per input."""

    @abstractmethod
    def metric(
        self, outputs: NDArray[np.floating], split: Split, rows: slice = ALL
    ) -> tuple[Float64Array, Float64Array]:
        """Loss and size of each example, given the model's outputs; both (n,).

        Losses are NaN if outputs are not finite. The mean loss of several examples is the sum of their losses divided
        by the sum of their sizes.
        """

    def save(self, path: Path) -> None:
        """Writes the file that :meth:`load` reads."""
        write_arrays(path, self.fields(), packed=self.packed)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Loads the data set from a file.

        Raises:
            DataError: The file is missing or is not what :meth:`save` writes.
        """
        return read_arrays(path, cls.of_fields)

    def example_tokens(self, arch: ArchSpec) -> int:
        """Number of positions that the model's layers process for one example."""
        return max(1, arch.max_tokens)

    def step_tokens(self, arch: ArchSpec, recipe: Recipe) -> int:
        """Number of positions in one training batch."""
        return recipe.batch_windows * self.example_tokens(arch)

    def shown_loss(self, loss: float) -> float:
        """Returns the loss unchanged, in nats per example."""
        return loss

    def judge(
        self,
        model: Any,
        *,
        split: Split = "validation",
        most: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> HeldOutScore:
        """Loss of ``model`` on the first ``most`` examples of ``split``, computed by :meth:`metric`."""
        import torch

        device, lost, size = next(model.parameters()).device, 0.0, 0.0
        count = self.count(split) if most is None else min(most, self.count(split))
        with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            for start in range(0, count, self.rows):
                rows = slice(start, min(start + self.rows, count))
                inputs = (torch.from_numpy(part).to(device) for part in self.examples(split, rows))
                values, sizes = self.metric(model(*inputs).float().cpu().numpy(), split, rows)
                lost += float(values.sum())
                size += float(sizes.sum())
        return HeldOutScore(loss=lost / size)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledArrays(ArrayDataset):
    """Inputs with class labels, split into training, validation and test parts.

    Models read ``(inputs − mean) / std``; the metric is the error rate.

    Attributes:
        train: Inputs (n, …) as stored, and labels (n,). Inputs are uint8 or float32, or int64 word ids, which are not
            scaled.
        validation: Inputs and labels of the part on which models are selected.
        test: Inputs and labels of the part that is not used to select models.
        classes: Names of the labels, in order.
        mean: Subtracted from the inputs; broadcasts against one example.
        std: Divisor of the inputs after the mean is subtracted.
    """

    train: Part
    validation: Part
    test: Part
    classes: tuple[str, ...]
    mean: NDArray[np.float32]
    std: NDArray[np.float32]

    @property
    def identity(self) -> Sequence[object]:
        """Values that identify the data: its shape, the class names, and a digest of the first training examples."""
        inputs, labels = self.train
        first = digest([np.asarray(inputs[:64], np.float64).round(6).ravel().tolist(), labels[:1024].tolist()])
        return [*inputs.shape, *self.classes, first]

    def require_fit(self, arch: ArchSpec) -> None:
        """Raises InputError if the model's number of classes or input shape differs from the data's."""
        if arch.outputs != len(self.classes):
            raise InputError(f"the model has {arch.outputs} classes, the data has {len(self.classes)}")
        shape = arch.stem.shape
        if shape != self.train[0].shape[1:]:
            raise InputError(f"the model reads examples of {shape}, the data has {self.train[0].shape[1:]}")

    def batch(self, arch: ArchSpec, recipe: Recipe, number: int, *, seed: int) -> tuple[Tensor, ...]:
        """Scaled inputs (rows, …) and labels (rows,) of a batch; the order differs between epochs."""
        import torch

        inputs, labels = self.train
        rows = rows_of_batch(number, recipe.batch_windows, len(labels), seed=seed)
        chosen = self.changed(self.scaled(inputs[rows]), np.random.default_rng([seed, number, 1]))
        return torch.from_numpy(np.ascontiguousarray(chosen)), torch.from_numpy(labels[rows])

    def changed(self, inputs: AnyArray, random: np.random.Generator) -> AnyArray:
        """Augments training inputs: random changes that keep labels valid. This class changes nothing."""
        return inputs

    def scaled(self, inputs: AnyArray) -> AnyArray:
        """Inputs scaled as the model reads them."""
        if inputs.dtype == np.int64:  # word ids
            return inputs
        found: NDArray[np.float32] = (inputs.astype(np.float32) - self.mean) / self.std
        return found

    def part(self, split: Split) -> Part:
        """Stored inputs and labels of a part."""
        return self.validation if split == "validation" else self.test

    def sizes(self) -> Iterator[tuple[int, int]]:
        """Yields the number of examples in each part, and the number of bytes of their inputs."""
        for inputs, labels in (self.train, self.validation, self.test):
            yield len(labels), int(inputs.nbytes)

    def count(self, split: Split) -> int:
        """Number of examples in a part."""
        return len(self.part(split)[1])

    def examples(self, split: Split, rows: slice = ALL) -> tuple[AnyArray, ...]:
        """Scaled inputs."""
        return (self.scaled(self.part(split)[0][rows]),)

    def metric(
        self, outputs: NDArray[np.floating], split: Split, rows: slice = ALL
    ) -> tuple[Float64Array, Float64Array]:
        """Losses are 1 for wrong predictions and 0 for correct ones; all sizes are 1."""
        return errors_of(outputs, self.part(split)[1][rows])

    def loss(self, model: nn.Module, batch: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """Mean cross entropy in nats per example."""
        import torch

        inputs, labels = batch
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            logits = model(inputs)
        return torch.nn.functional.cross_entropy(logits.float(), labels)

    def fields(self) -> Mapping[str, AnyArray]:
        """Arrays of the file: inputs and labels of each part, scales, and class names."""
        held: dict[str, AnyArray] = {"mean": self.mean, "std": self.std, "classes": np.array(self.classes)}
        for name in PARTS:
            held[f"{name}_inputs"], held[f"{name}_labels"] = getattr(self, name)
        return held

    @classmethod
    def of_fields(cls, file: Mapping[str, AnyArray]) -> Self:
        """Builds the data set from the arrays of a file."""
        parts = {name: (file[f"{name}_inputs"], file[f"{name}_labels"].astype(np.int64)) for name in PARTS}
        scales = file["mean"].astype(np.float32), file["std"].astype(np.float32)
        return cls.of_parts(parts, map(str, file["classes"]), scales)

    @classmethod
    def of_parts(cls, parts: Mapping[str, Part], classes: Iterable[str], scales: Scales) -> Self:
        """Builds the data set from the part for each name in ``PARTS``, the class names, and the scales.

        The scales are the mean and the standard deviation of the inputs.
        """
        train, validation, test = (parts[name] for name in PARTS)
        mean, std = scales
        return cls(train=train, validation=validation, test=test, classes=tuple(classes), mean=mean, std=std)


def errors_of(logits: NDArray[np.floating], labels: NDArray[np.int64]) -> tuple[Float64Array, Float64Array]:
    """Error of each example (1 if wrong, 0 if right, NaN if its logits are not finite), and its size, which is 1."""
    wrong = (logits.argmax(axis=1) != labels).astype(float)
    return np.where(np.isfinite(logits).all(axis=1), wrong, np.nan), np.ones(len(labels))


def rows_of_batch(number: int, rows: int, count: int, *, seed: int) -> NDArray[np.int64]:
    """Indices (rows,) of the examples in batch ``number``; the data has ``count`` examples.

    The order of the examples is different in each epoch.
    """
    places = (divmod(i, count) for i in range(number * rows, (number + 1) * rows))
    return np.array([shuffled(seed, epoch, count)[place] for epoch, place in places])


@functools.lru_cache(maxsize=2)
def shuffled(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    """A random order of ``count`` examples for an epoch."""
    return np.random.default_rng([seed, epoch]).permutation(count)
