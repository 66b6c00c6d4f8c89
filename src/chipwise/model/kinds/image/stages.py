"""Stages of a pyramid (Swin): layers of smaller width on a finer grid, before a model's own layers.

References:
    Liu et al. 2021, Swin Transformer, arXiv:2103.14030; version 2, arXiv:2111.09883.
"""

from __future__ import annotations

from dataclasses import dataclass

from chipwise.core.fields import check_fields, positive
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.mixers import Attention


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """``depth`` equal pre-norm layers of width ``d_model``, then a merge of each 2 by 2 positions into one.

    The merge has a norm and a matrix without bias. The matrix maps the concatenated values of four positions to one
    position, which has the next stage's width. The norm comes before the matrix or, with ``norm_after``, after it. In
    Swin, a norm after the matrix covers half as many values as a norm before it.
    """

    d_model: int
    depth: int
    attention: Attention
    ffn: FeedForward
    norm_after: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "d_model", "depth")

    def merge_parameters(self, width: int) -> int:
        """Number of parameters of the merge into positions of ``width`` values."""
        return 4 * self.d_model * width + 2 * (width if self.norm_after else 4 * self.d_model)
