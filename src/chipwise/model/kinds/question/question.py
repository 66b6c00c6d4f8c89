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

    If layers have cross-attention, only the words pass through the layers. Between self-attention and feed-forward they
    attend to the image's tokens, which are normed once, as a decoder attends to its encoder (Vaswani et al. 2017,
    arXiv:1706.03762, section 3.2.3; for images Alayrac et al. 2022, Flamingo, arXiv:2204.14198). Either way, the
    position table holds the image's positions, then the words'.
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
            raise SpecError("needs an image's patches, none before them, and a head of classes", field="question")

    @property
    def axes(self) -> int:
        """Axes of the image."""
        return self.image.axes

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the image."""
        return self.image.shape

    @property
    def image_tokens(self) -> int:
        """Positions of the image after the projector."""
        return self.projector.tokens_of(self.image.grid, self.image.axes)

    @property
    def positions(self) -> int:
        """Positions of the image and the words."""
        return self.image_tokens + self.question.tokens

    @property
    def request_tokens(self) -> int:
        """Positions per request, as :attr:`positions`."""
        return self.positions

    @property
    def square_grid(self) -> int:
        """Patches on each side of the image's grid."""
        return self.image.square_grid

    def matrices(self, d_model: int) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of the image's matrices, and of the projector's."""
        return (*self.image.matrices(d_model), *self.projector.shapes(d_model, self.axes))

    def parameters(self, d_model: int) -> int:
        """Parameters of the image's stem, the projector and the word table."""
        behind = self.projector.parameters_of(d_model, self.axes)
        return self.image.parameters(d_model) + behind + self.question.words * d_model

    def check(self, trunk: Trunk, head: Head) -> None:
        """Checks that ``head`` can answer, and that width and positions of ``trunk`` fit image and words."""
        if not head.answers:
            raise SpecError("needs an image's patches, none before them, and a head of classes", field="question")
        if head.pooling != "last":
            raise SpecError(LAST, field="pooling")
        if self.projector.widths[-1] != trunk.d_model:
            raise SpecError(f"must end with the width {trunk.d_model}", field="projector.widths")
        if trunk.max_tokens != self.positions:
            raise SpecError(
                f"image and question have {self.positions} positions, not {trunk.max_tokens}", field="max_tokens"
            )

    def record(self) -> Mapping[str, object]:
        """Record of the image's stem, the question and the projector."""
        return {"stem": self.image, "question": self.question, "projector": self.projector}


def question_of(stem: Stem) -> QuestionStem | None:
    """``stem`` if it reads a question too, else None."""
    return stem if isinstance(stem, QuestionStem) else None


def image_of(stem: Stem) -> ImageStem:
    """The image stem of ``stem``, with or without a question.

    Raises:
        Unsupported: ``stem`` reads no image.
    """
    found = stem.image if isinstance(stem, QuestionStem) else stem
    if not isinstance(found, ImageStem):
        raise Unsupported("the model does not read images")
    return found
