"""Questions that are asked with an image: the stem of a model of the task ``multimodal``, and what it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from chipwise.core.fields import check_fields, positive
from chipwise.errors import SpecError, Unsupported
from chipwise.model.arch.trunk import Head, Reads, Stem, Trunk
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.question.projector.spec import Projector


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Words of a question, behind the image's tokens; the state of the last one gives the answer.

    Image and question see each other, as the prefix does in PaliGemma (Beyer et al. 2024, arXiv:2407.07726, section
    3.2.5); the answer is the one token that follows, a row of the head.

    Where layers have cross-attention the words pass the layers alone: their queries meet keys and values of the image's
    tokens, which are normed once, between self-attention and feed-forward, as a decoder's those of its encoder (Vaswani
    et al. 2017, arXiv:1706.03762, section 3.2.3; of images Alayrac et al. 2022, Flamingo, arXiv:2204.14198). The table
    of positions is the same: first those of the image, then those of the words.
    """

    words: int  # rows of the table
    tokens: int  # positions of a question; a shorter one has room before it

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "words", most=1_000_000)
        positive(self, "tokens", most=4096)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionStem(Stem):
    """Reads an image and a question about it: patches, which a projector makes tokens of, and words."""

    reads: ClassVar[Reads] = "image"
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
        """Those of the image."""
        return self.image.axes

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the image."""
        return self.image.shape

    @property
    def image_tokens(self) -> int:
        """Positions of the image in the layers, behind the projector."""
        return self.projector.tokens_of(self.image.grid, self.image.axes)

    @property
    def positions(self) -> int:
        """Positions of the image and the words."""
        return self.image_tokens + self.question.tokens

    @property
    def request_tokens(self) -> int:
        """As :attr:`positions`."""
        return self.positions

    @property
    def square_grid(self) -> int:
        """Patches on each side of the image's grid."""
        return self.image.square_grid

    def matrices(self, d_model: int) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of the image's matrices, and of the projector's."""
        return (*self.image.matrices(d_model), *self.projector.shapes(d_model, self.axes))

    def parameters(self, d_model: int) -> int:
        """The image's patches, the projector and the table of words."""
        behind = self.projector.parameters_of(d_model, self.axes)
        return self.image.parameters(d_model) + behind + self.question.words * d_model

    def check(self, trunk: Trunk, head: Head) -> None:
        """Checks that ``head`` answers, and ``trunk`` has the tokens' width and positions for image and words."""
        if not head.answers:
            raise SpecError("needs an image's patches, none before them, and a head of classes", field="question")
        if self.projector.widths[-1] != trunk.d_model:
            raise SpecError(f"must end with the width {trunk.d_model}", field="projector.widths")
        if trunk.max_tokens != self.positions:
            raise SpecError(
                f"image and question have {self.positions} positions, not {trunk.max_tokens}", field="max_tokens"
            )

    def record(self) -> Mapping[str, object]:
        """The image's stem, the question and the projector."""
        return {"stem": self.image, "question": self.question, "projector": self.projector}


def question_of(stem: Stem) -> QuestionStem | None:
    """``stem`` where it reads a question too, else None."""
    return stem if isinstance(stem, QuestionStem) else None


def image_of(stem: Stem) -> ImageStem:
    """The stem of the image that ``stem`` reads, alone or with a question.

    Raises:
        Unsupported: It reads no image.
    """
    found = stem.image if isinstance(stem, QuestionStem) else stem
    if not isinstance(found, ImageStem):
        raise Unsupported("the model does not read images")
    return found
