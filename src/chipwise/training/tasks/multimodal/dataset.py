"""Questions about images as a data set: each example is an image, a question in numbers of words, and an answer."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chipwise.core.digest import digest
from chipwise.core.files import storage, write_atomic
from chipwise.errors import DataError, InputError
from chipwise.model.arch.arch import ArchSpec
from chipwise.training.data.arrays import ROWS, errors_of, shuffled
from chipwise.training.data.dataset import Judged, Split

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from chipwise.training.loop.trainer import Recipe

PARTS = ("train", "validation", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionPart:
    """Questions of one part of the data: images (n, C, Y, X) in 8 bits; the others have a row a question."""

    images: NDArray[np.uint8]
    image: NDArray[np.int64]  # number of the image
    words: NDArray[np.int64]  # (questions, T)
    answers: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureQuestions:
    """See :class:`chipwise.training.data.dataset.Dataset`; a model's metric is the share of wrong answers."""

    train: QuestionPart
    validation: QuestionPart
    test: QuestionPart
    words: tuple[str, ...]
    answers: tuple[str, ...]
    mean: NDArray[np.float32]
    std: NDArray[np.float32]

    @property
    def identity(self) -> Sequence[Any]:
        """Sizes, words, answers and the first examples."""
        part = self.train
        first = digest([part.images[:16].ravel().tolist(), part.words[:256].tolist(), part.answers[:256].tolist()])
        return [*part.images.shape, len(part.answers), *self.words, *self.answers, first]

    def require_fit(self, arch: ArchSpec) -> None:
        """Raises InputError for a model of other images, questions or answers."""
        if arch.question is None or arch.stem is None:
            raise InputError("the model reads no questions about images")
        if arch.classes < len(self.answers) or arch.question.words < len(self.words):
            raise InputError(
                f"the model has {arch.question.words} words and {arch.classes} answers, the data {len(self.words)} "
                f"and {len(self.answers)}"
            )
        asked = (arch.stem.shape, arch.question.tokens)
        given = (self.train.images.shape[1:], self.train.words.shape[1])
        if asked != given:
            raise InputError(f"the model reads images and questions of {asked}, the data has {given}")

    def step_tokens(self, arch: ArchSpec, recipe: Recipe) -> int:
        """Positions of a batch."""
        return recipe.batch_windows * arch.max_tokens

    def example_tokens(self, arch: ArchSpec) -> int:
        """Positions that the model's layers see of one example."""
        return arch.max_tokens

    def batch(self, arch: ArchSpec, recipe: Recipe, number: int, *, seed: int) -> tuple[Tensor, ...]:
        """Scaled images, words and answers of so many questions; every epoch has its own order."""
        import torch

        part, count = self.train, len(self.train.answers)
        places = [divmod(i, count) for i in range(number * recipe.batch_windows, (number + 1) * recipe.batch_windows)]
        rows = np.array([shuffled(seed, epoch, count)[place] for epoch, place in places])
        images = self.scaled(part.images[part.image[rows]])
        return tuple(torch.from_numpy(each) for each in (images, part.words[rows], part.answers[rows]))

    def scaled(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Images as a model takes them."""
        found: NDArray[np.float32] = (images.astype(np.float32) - self.mean) / self.std
        return found

    def loss(self, model: nn.Module, batch: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """Mean cross entropy of the answers in nats."""
        import torch

        images, words, answers = batch
        with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            logits = model(images, words)
        return torch.nn.functional.cross_entropy(logits.float(), answers)

    def shown_loss(self, loss: float) -> float:
        """Nats per answer, as they are."""
        return loss

    def judge(
        self,
        model: Any,
        *,
        split: Split = "validation",
        most: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> Judged:
        """The share of wrong answers among the first ``most`` questions."""
        import torch

        part = self.part(split)
        device, count, wrong = next(model.parameters()).device, len(part.answers[:most]), 0.0
        with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            for start in range(0, count, ROWS):
                rows = slice(start, min(start + ROWS, count))
                images = torch.from_numpy(self.scaled(part.images[part.image[rows]])).to(device)
                logits = model(images, torch.from_numpy(part.words[rows]).to(device)).float().cpu().numpy()
                wrong += float(errors_of(logits, part.answers[rows]).sum())
        return Judged(loss=wrong / count)

    def part(self, split: Split) -> QuestionPart:
        """The part that selects models, or the one that selects nothing."""
        return self.validation if split == "validation" else self.test


def save_questions(path: Path, data: PictureQuestions) -> None:
    """Writes a data set for :func:`load_questions`."""
    held: dict[str, NDArray[Any]] = {
        "mean": data.mean, "std": data.std, "words": np.array(data.words), "answers": np.array(data.answers),
    }  # fmt: skip
    for name in PARTS:
        part: QuestionPart = getattr(data, name)
        held |= {f"{name}_{field}": getattr(part, field) for field in ("images", "image", "words", "answers")}
    stream = io.BytesIO()
    np.savez(stream, **held)  # type: ignore[arg-type]  # noise hardly shrinks, and each training reads it
    with storage(path):
        write_atomic(path, stream.getvalue())


def load_questions(path: str | Path) -> PictureQuestions:
    """The data set of a file.

    Raises:
        DataError: The file is missing or is not what :func:`save_questions` writes.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            parts = {
                name: QuestionPart(
                    **{field: file[f"{name}_{field}"] for field in ("images", "image", "words", "answers")}
                )
                for name in PARTS
            }
            return PictureQuestions(
                **parts,
                mean=file["mean"],
                std=file["std"],
                words=tuple(map(str, file["words"])),
                answers=tuple(map(str, file["answers"])),
            )
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file of data") from None
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: not a file of data ({error}); delete it and it is made again") from None
