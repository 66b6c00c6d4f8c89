"""The stem of models that answer questions about images (the task ``multimodal``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from chipwise.core.fields import check_fields, positive
from chipwise.errors import SpecError, Unsupported
from chipwise.model.arch.trunk import LAST, Head, Reads, Stem, Trunk
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.question.projector.spec import Projector


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The words of a question, which follow the image's tokens; the answer is predicted from the last word's state.

    Image and question attend to each other, like the prefix in PaliGemma (Beyer et al. 2024, arXiv:2407.07726, section
    3.2.5). The answer is one class of the head.

    If layers have cross-attention, only the words pass through the layers. Between self-attention and feed-forward,
    the words attend to the image's tokens, as a decoder attends to its encoder (Vaswani et al. 2017, arXiv:1706.03762,
    section 3.2.3; for images Alayrac et al. 2022, Flamingo, arXiv:2204.14198). The image's tokens are normed once.

    With or without cross-attention, the position table holds first the image's positions, then the words' positions.
    """

    words: int  # rows of the word table
    tokens: int  # positions per question; shorter questions are padded in front

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "words", most=1_000_000)
        positive(self, "tokens", most=4096)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionStem(Stem):
    """Reads an image, whose patches a projector turns into tokens, and the words of a question about it."""

    reads: ClassVar[Reads] = "image"
    does: ClassVar[str] = "answer questions about images"
    calibration: ClassVar[str] = "images"
    asks: ClassVar[bool] = True
    image: ImageStem
    question: Question
    projector: Projector

    def __post_init__(self) -> None:
        check_fields(self)
        if self.image.prefix_tokens:
            raise SpecError("needs image patches without prefix tokens, and a head of classes", field="question")

    @property
    def axes(self) -> int:
        """Number of axes of the image."""
        return self.image.axes

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the image."""
        return self.image.shape

    @property
    def image_tokens(self) -> int:
        """Number of sequence positions of the image after the projector."""
        return self.projector.tokens_of(self.image.grid, self.image.axes)

    @property
    def tokens(self) -> int:
        """Number of sequence positions of the image and the words together."""
        return self.image_tokens + self.question.tokens

    @property
    def square_grid(self) -> int:
        """Number of patches on each side of the image's grid for windowed attention; 0 if there is no such grid."""
        return self.image.square_grid

    def matrices(self, d_model: int) -> tuple[tuple[int, int], ...]:
        """Input and output width of each matrix in the image's stem and in the projector."""
        return (*self.image.matrices(d_model), *self.projector.shapes(d_model, self.axes))

    def parameters(self, d_model: int) -> int:
        """Number of parameters of the image's stem, the projector and the word table."""
        behind = self.projector.parameters_of(d_model, self.axes)
        return self.image.parameters(d_model) + behind + self.question.words * d_model

    def check(self, trunk: Trunk, head: Head) -> None:
        """Checks that ``head`` is a classifier, and that ``trunk`` has the projector's width and enough positions."""
        if not head.answers:
            raise SpecError("needs image patches without prefix tokens, and a head of classes", field="question")
        if head.pooling != "last":
            raise SpecError(LAST, field="pooling")
        if self.projector.widths[-1] != trunk.d_model:
            raise SpecError(f"the last width must be the model's width, {trunk.d_model}", field="projector.widths")
        if trunk.max_tokens != self.tokens:
            raise SpecError(f"must be {self.tokens} for image and question, not {trunk.max_tokens}", field="max_tokens")

    def record(self) -> Mapping[str, object]:
        """The stored fields: the image's stem, the question and the projector."""
        return {"stem": self.image, "question": self.question, "projector": self.projector}


def question_of(stem: Stem) -> QuestionStem | None:
    """``stem`` if it reads an image and a question, else None."""
    return stem if isinstance(stem, QuestionStem) else None


def image_of(stem: Stem) -> ImageStem:
    """The image stem: ``stem`` itself or, if ``stem`` also reads a question, the field ``image`` of ``stem``.

    Raises:
        Unsupported: ``stem`` reads no image.
    """
    found = stem.image if isinstance(stem, QuestionStem) else stem
    if not isinstance(found, ImageStem):
        raise Unsupported("the model does not read images")
    return found
