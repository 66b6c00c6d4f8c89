"""Arrays with labels as a data set: images, rows of a table, pieces of a signal; a model gives logits of classes.

The file is an ``.npz`` with inputs (uint8 or float32) and labels of each part, and what its inputs are scaled by.
"""

from __future__ import annotations

import functools
import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import Float64Array
from chipwise.core.digest import digest
from chipwise.core.files import storage, write_atomic
from chipwise.errors import DataError, InputError
from chipwise.model.arch.arch import ArchSpec
from chipwise.training.data.dataset import Judged, Split

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from chipwise.training.loop.trainer import Recipe

PARTS = ("train", "validation", "test")
ROWS = 256  # examples at a time, where a model is judged
Part = tuple[NDArray[Any], NDArray[np.int64]]  # inputs (n, …) and labels (n,)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledArrays:
    """Inputs with labels, in three parts. A model learns ``(inputs − mean) / std``; its metric is the share of errors.

    Attributes:
        train: Inputs (n, …) as stored, uint8 or float32, and labels (n,).
        validation: The same of the part that selects models.
        test: The same of the part that selects nothing.
        classes: Names of the labels, in order.
        mean: Subtracted from the inputs; broadcasts against one example.
        std: What they are divided by.
    """

    train: Part
    validation: Part
    test: Part
    classes: tuple[str, ...]
    mean: NDArray[np.float32]
    std: NDArray[np.float32]

    @property
    def identity(self) -> Sequence[Any]:
        """Sizes, classes and the first examples."""
        inputs, labels = self.train
        first = digest([np.asarray(inputs[:64], np.float64).round(6).ravel().tolist(), labels[:1024].tolist()])
        return [*inputs.shape, *self.classes, first]

    def require_fit(self, arch: ArchSpec) -> None:
        """Raises InputError for a model of another number of classes, or whose stem reads examples of another shape."""
        if arch.classes != len(self.classes):
            raise InputError(f"the model tells {arch.classes} classes apart, the data has {len(self.classes)}")
        shape = None if arch.stem is None else arch.stem.shape
        if shape != self.train[0].shape[1:]:
            raise InputError(f"the model reads examples of {shape}, the data has {self.train[0].shape[1:]}")

    def example_tokens(self, arch: ArchSpec) -> int:
        """Positions that the model's layers see of one example."""
        return max(1, arch.max_tokens)

    def step_tokens(self, arch: ArchSpec, recipe: Recipe) -> int:
        """Positions of a batch of examples."""
        return recipe.batch_windows * self.example_tokens(arch)

    def batch(self, arch: ArchSpec, recipe: Recipe, number: int, *, seed: int) -> tuple[Tensor, ...]:
        """Scaled inputs (rows, …) and labels (rows,); every epoch has its own order."""
        import torch

        inputs, labels = self.train
        numbers = range(number * recipe.batch_windows, (number + 1) * recipe.batch_windows)
        places = [divmod(i, len(labels)) for i in numbers]
        rows = np.array([shuffled(seed, epoch, len(labels))[place] for epoch, place in places])
        chosen = self.changed(self.scaled(inputs[rows]), np.random.default_rng([seed, number, 1]))
        return torch.from_numpy(np.ascontiguousarray(chosen)), torch.from_numpy(labels[rows])

    def changed(self, inputs: NDArray[np.float32], random: np.random.Generator) -> NDArray[np.float32]:
        """Inputs of a training batch after random changes that leave labels true; none here."""
        return inputs

    def scaled(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        """Inputs as a model takes them."""
        found: NDArray[np.float32] = (inputs.astype(np.float32) - self.mean) / self.std
        return found

    def part(self, split: Split, most: int | None = None) -> Part:
        """Scaled inputs and labels of the first ``most`` examples of ``split``, all of them unless given."""
        inputs, labels = self.validation if split == "validation" else self.test
        return self.scaled(inputs[:most]), labels[:most]

    def loss(self, model: nn.Module, batch: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """Mean cross entropy in nats per example."""
        import torch

        inputs, labels = batch
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            logits = model(inputs)
        return torch.nn.functional.cross_entropy(logits.float(), labels)

    def shown_loss(self, loss: float) -> float:
        """Nats per example, as they are."""
        return loss

    def judge(
        self,
        model: Any,
        *,
        split: Split = "validation",
        most: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> Judged:
        """The share of examples whose label is not the likeliest."""
        import torch

        inputs, labels = self.part(split, most)
        device = next(model.parameters()).device
        wrong = 0.0
        with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            for start in range(0, len(labels), ROWS):
                logits = model(torch.from_numpy(inputs[start : start + ROWS]).to(device)).float().cpu().numpy()
                wrong += float(errors_of(logits, labels[start : start + ROWS]).sum())
        return Judged(loss=wrong / len(labels))


def errors_of(logits: NDArray[np.floating], labels: NDArray[np.int64]) -> Float64Array:
    """1 for each example whose label is not the likeliest, else 0, (n,); NaN where logits are not finite."""
    wrong = (logits.argmax(axis=1) != labels).astype(float)
    return np.where(np.isfinite(logits).all(axis=1), wrong, np.nan)


@functools.lru_cache(maxsize=2)
def shuffled(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    """The order of ``count`` examples in an epoch."""
    return np.random.default_rng([seed, epoch]).permutation(count)


def save_arrays(path: Path, data: LabelledArrays, **more: NDArray[Any]) -> None:
    """Writes a data set for :func:`load_arrays`, and ``more`` that a kind which extends it holds."""
    held: dict[str, NDArray[Any]] = more | {"mean": data.mean, "std": data.std, "classes": np.array(data.classes)}
    for name in PARTS:
        held[f"{name}_inputs"], held[f"{name}_labels"] = getattr(data, name)
    stream = io.BytesIO()
    np.savez_compressed(stream, **held)  # type: ignore[arg-type]
    with storage(path):
        write_atomic(path, stream.getvalue())


def load_arrays(path: str | Path) -> LabelledArrays:
    """The data set of a file.

    Raises:
        DataError: The file is missing or is not what :func:`save_arrays` writes.
    """
    return LabelledArrays(**read_arrays(path))


def read_arrays(path: str | Path) -> Mapping[str, Any]:
    """The fields of a :class:`LabelledArrays`, for kinds that extend it.

    Raises:
        DataError: The file is missing or is not what :func:`save_arrays` writes.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            fields: dict[str, Any] = {
                name: (file[f"{name}_inputs"], file[f"{name}_labels"].astype(np.int64)) for name in PARTS
            }
            fields |= {"mean": file["mean"].astype(np.float32), "std": file["std"].astype(np.float32)}
            return {**fields, "classes": tuple(str(name) for name in file["classes"])}
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file of data") from None
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: not a file of data ({error}); delete it and it is made again") from None
