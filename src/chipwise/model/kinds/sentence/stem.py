"""The stem of a text classifier: a table of words, which may be narrower than the model.

References:
    Narrow tables followed by a matrix: Lan et al. 2020, ALBERT, arXiv:1909.11942.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from chipwise.core.fields import check_fields, not_negative, positive
from chipwise.model.arch.trunk import Reads, Stem
from chipwise.model.kinds.tables import table_name


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceStem(Stem):
    """Reads ``tokens`` words, each as a row of a table with ``words`` rows. Shorter texts start with padding, row 0.

    If ``width`` is not 0, table rows have ``width`` values and a matrix to the model's width follows. If it is 0, they
    have the model's width.
    """

    reads: ClassVar[Reads] = "request"
    does: ClassVar[str] = "classify texts"
    calibration: ClassVar[str] = "images"
    words: int
    tokens: int = field()  # no default, although other stems have 0
    width: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "words", most=1_000_000)
        positive(self, "tokens", most=4096)
        not_negative(self, "width")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array of a request's word numbers."""
        return (self.tokens,)

    @property
    def table(self) -> str:
        """The word for the table's width in a run file, such as ``w16``."""
        return table_name(self.width)

    def table_width(self, d_model: int) -> int:
        """Number of values per table row."""
        return self.width or d_model

    def matrices(self, d_model: int) -> tuple[tuple[int, int], ...]:
        """Input and output width of the matrix after the table, if there is one."""
        return ((self.width, d_model),) if self.width else ()

    def parameters(self, d_model: int) -> int:
        """Number of parameters of the table and the matrix."""
        return self.words * self.table_width(d_model) + self.width * d_model
