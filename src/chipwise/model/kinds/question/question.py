"""Questions that are asked with an image: what a model of the task ``multimodal`` reads beside the image's tokens."""

from __future__ import annotations

from dataclasses import dataclass

from chipwise.core.fields import check_fields, positive


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
