"""Sources of questions about images: generated images of shapes, or the user's table with paths of images.

Images are scaled to the size in the space. Pillow decodes images, pyarrow reads Parquet.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from chipwise.core.extras import optional_imports
from chipwise.core.fields import check_fields, positive
from chipwise.errors import DataError, SpecError
from chipwise.training.data.image_files import read_image
from chipwise.training.data.text_rows import text_rows
from chipwise.training.tasks.multimodal import shapes

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

COLUMNS = ("image", "question", "answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionsSpec:
    """The ``data`` of a run file for questions about images.

    ``shapes`` generates ``images`` images. ``files`` reads ``path``, a JSONL or Parquet file with the columns image (a
    path relative to the file's folder), question and answer. Only the most frequent answers are kept, as many as the
    space has classes.
    """

    source: Literal["shapes", "files"] = "shapes"
    images: int = 12_000
    seed: int = 0
    path: str = ""
    licence: str = "not stated"
    validation_share: float = 0.05  # share of the images; the test part is as large

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "images", most=1_000_000)
        if self.source == "files" and not self.path:
            raise SpecError("is missing; name the file with images, questions and answers", field="path")
        if not 0 < self.validation_share <= 0.25:
            raise SpecError(f"must be above 0 and at most 0.25, not {self.validation_share}", field="validation_share")


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """Images (n, C, Y, X) in 8 bits, with questions about them and answers as text."""

    pixels: NDArray[np.uint8]
    image: NDArray[np.int64]  # (questions,): index of the image
    questions: list[str]
    answers: list[str]
    source: str
    licence: str


def read_questions(spec: QuestionsSpec, base: Path, *, size: int, channels: int) -> Questions:
    """Reads or generates the questions, with images of ``size`` × ``size`` pixels and this many channels.

    Raises:
        DataError: A file is missing or broken; the message names it and the row.
        MissingExtra: The package that reads the file is not installed.
    """
    if spec.source == "shapes":
        found = shapes.generate(spec.images, seed=spec.seed)
        pixels = np.stack([_scaled(picture, size, channels) for picture in found.pixels])
        return Questions(
            pixels=pixels, image=found.image, questions=found.questions, answers=found.answers,
            source=f"{spec.images:,} synthetic images of coloured shapes (seed {spec.seed})", licence=shapes.LICENCE,
        )  # fmt: skip
    path = base / spec.path
    rows = list(text_rows(path, COLUMNS))
    if not rows:
        raise DataError(f"{path}: holds no questions")
    numbers: dict[str, int] = {}
    for row in rows:
        numbers.setdefault(row["image"], len(numbers))
    return Questions(
        pixels=np.stack(
            [_fitted(read_image(path.parent / name, channels=channels), size, channels) for name in numbers]
        ),
        image=np.array([numbers[row["image"]] for row in rows]),
        questions=[row["question"] for row in rows],
        answers=[row["answer"].strip().lower() for row in rows],
        source=str(path),
        licence=spec.licence,
    )


def _scaled(pixels: NDArray[np.uint8], size: int, channels: int) -> NDArray[np.uint8]:
    """Scales an image (Y, X, 3) to (C, size, size)."""
    if pixels.shape[:2] == (size, size) and channels == 3:
        return pixels.transpose(2, 0, 1)
    with optional_imports():
        from PIL import Image
    return _fitted(Image.fromarray(pixels), size, channels)


def _fitted(image: PillowImage, size: int, channels: int) -> NDArray[np.uint8]:
    found = np.asarray(image.convert("L" if channels == 1 else "RGB").resize((size, size)), np.uint8)
    return found[None] if channels == 1 else found.transpose(2, 0, 1)
