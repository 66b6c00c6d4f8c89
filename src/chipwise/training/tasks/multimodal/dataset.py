"""Data set of questions about images: an example is an image, a question as word ids, and an answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import AnyArray, Float64Array
from chipwise.core.digest import digest
from chipwise.errors import InputError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.question.question import question_of
from chipwise.training.data.arrays import ALL, PARTS, ArrayDataset, errors_of, rows_of_batch
from chipwise.training.data.dataset import Split
from chipwise.training.data.recipe import Recipe

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


FIELDS = ("images", "image", "words", "answers")  # arrays of a part


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionPart:
    """Images and questions of one part: 8-bit images (n, C, Y, X); all other arrays have one row per question."""

    images: NDArray[np.uint8]
    image: NDArray[np.int64]  # index of the question's image
    words: NDArray[np.int64]  # (questions, T) word ids
    answers: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureQuestions(ArrayDataset):
    """Questions about images; see :class:`chipwise.training.data.dataset.Dataset`. The metric is the error rate."""

    packed: ClassVar[bool] = False
    train: QuestionPart
    validation: QuestionPart
    test: QuestionPart
    words: tuple[str, ...]
    answers: tuple[str, ...]
    mean: NDArray[np.float32]
    std: NDArray[np.float32]

    @property
    def identity(self) -> Sequence[object]:
        """Values that identify the data: sizes, words, answers, and a digest of the first examples."""
        part = self.train
        first = digest([part.images[:16].ravel().tolist(), part.words[:256].tolist(), part.answers[:256].tolist()])
        return [*part.images.shape, len(part.answers), *self.words, *self.answers, first]

    def require_fit(self, arch: ArchSpec) -> None:
        """Raises InputError if the model's image size, question length, words or answers differ."""
        found = question_of(arch.stem)
        if found is None:
            raise InputError("the model does not read questions about images")
        if arch.outputs < len(self.answers) or found.question.words < len(self.words):
            raise InputError(
                f"the model has {found.question.words} words and {arch.outputs} answers, the data has "
                f"{len(self.words)} and {len(self.answers)}"
            )
        asked = (found.shape, found.question.tokens)
        given = (self.train.images.shape[1:], self.train.words.shape[1])
        if asked != given:
            raise InputError(f"the model reads images and questions of {asked}, the data has {given}")

    def batch(self, arch: ArchSpec, recipe: Recipe, number: int, *, seed: int) -> tuple[Tensor, ...]:
        """Scaled images, word ids and answers of a batch of questions; the order differs between epochs."""
        import torch

        part = self.train
        rows = rows_of_batch(number, recipe.batch_windows, len(part.answers), seed=seed)
        images = self.scaled(part.images[part.image[rows]])
        return tuple(torch.from_numpy(each) for each in (images, part.words[rows], part.answers[rows]))

    def scaled(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Images scaled as the model reads them."""
        found: NDArray[np.float32] = (images.astype(np.float32) - self.mean) / self.std
        return found

    def loss(self, model: nn.Module, batch: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """Mean cross entropy of the answers in nats."""
        import torch

        images, words, answers = batch
        with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            logits = model(images, words)
        return torch.nn.functional.cross_entropy(logits.float(), answers)

    def part(self, split: Split) -> QuestionPart:
        """The validation part (used for selection) or the test part."""
        return self.validation if split == "validation" else self.test

    def sizes(self) -> Iterator[tuple[int, int]]:
        """Yields the number of questions in each part, and the number of bytes of the part's images."""
        for part in (self.train, self.validation, self.test):
            yield len(part.answers), int(part.images.nbytes)

    def count(self, split: Split) -> int:
        """Number of questions in a part."""
        return len(self.part(split).answers)

    def examples(self, split: Split, rows: slice = ALL) -> tuple[AnyArray, ...]:
        """Scaled images, and word ids."""
        part = self.part(split)
        return self.scaled(part.images[part.image[rows]]), part.words[rows]

    def metric(
        self, outputs: NDArray[np.floating], split: Split, rows: slice = ALL
    ) -> tuple[Float64Array, Float64Array]:
        """1 for each wrong answer and 0 for each right one."""
        return errors_of(outputs, self.part(split).answers[rows])

    def fields(self) -> Mapping[str, AnyArray]:
        """Arrays of the file: images, word ids and answers of each part, scales, words and answer names."""
        held: dict[str, AnyArray] = {
            "mean": self.mean, "std": self.std, "words": np.array(self.words), "answers": np.array(self.answers),
        }  # fmt: skip
        return held | {f"{name}_{field}": getattr(getattr(self, name), field) for name in PARTS for field in FIELDS}

    @classmethod
    def of_fields(cls, file: Mapping[str, AnyArray]) -> Self:
        """Builds the data set from the arrays of a file."""
        return cls(
            **{name: QuestionPart(**{field: file[f"{name}_{field}"] for field in FIELDS}) for name in PARTS},
            mean=file["mean"],
            std=file["std"],
            words=tuple(map(str, file["words"])),
            answers=tuple(map(str, file["answers"])),
        )
