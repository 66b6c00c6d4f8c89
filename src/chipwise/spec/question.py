"""Questions that are asked with an image: what a model of the task ``multimodal`` reads behind the image's tokens."""

from __future__ import annotations

from dataclasses import dataclass

from chipwise.core.fields import check_fields, positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Words of a question, behind the image's tokens; the state of the last one gives the answer.

    Image and question see each other, as the prefix does in PaliGemma (Beyer et al. 2024, arXiv:2407.07726, section
    3.2.5); the answer is the one token that follows, a row of the head.
    """

    words: int  # rows of the table
    tokens: int  # positions of a question; a shorter one has room before it

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "words", most=1_000_000)
        positive(self, "tokens", most=4096)
