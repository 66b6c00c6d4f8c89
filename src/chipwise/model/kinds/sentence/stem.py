"""The stem of a text classifier: a table of words, which may be narrower than the model.

References:
    Narrow tables followed by a matrix: Lan et al. 2020, ALBERT, arXiv:1909.11942.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from chipwise.core.fields import check_fields, positive
from chipwise.errors import SpecError
from chipwise.model.arch.trunk import Reads, Stem
from chipwise.model.kinds.tables import table_name


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceStem(Stem):
    """A text of ``tokens`` words, each a row of a table of ``words`` rows; a shorter text begins with row 0.

    Rows of ``width`` values are followed by a matrix to the model's width; with ``width`` 0, rows have the model's
    width.
    """

    reads: ClassVar[Reads] = "request"
    does: ClassVar[str] = "tell texts apart"
    calibration: ClassVar[str] = "images"
    words: int
    tokens: int
    width: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "words", most=1_000_000)
        positive(self, "tokens", most=4096)
        if self.width < 0:
            raise SpecError(f"must be at least 0, not {self.width}", field="width")

    @property
    def request_tokens(self) -> int:
        """Positions per request."""
        return self.tokens

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a request's word numbers."""
        return (self.tokens,)

    @property
    def table(self) -> str:
        """Name of the table in a run file."""
        return table_name(self.width)

    def table_width(self, d_model: int) -> int:
        """Values per table row."""
        return self.width or d_model

    def matrices(self, d_model: int) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of the matrix after the table, if there is one."""
        return ((self.width, d_model),) if self.width else ()

    def parameters(self, d_model: int) -> int:
        """Parameters of the table and the matrix."""
        return self.words * self.table_width(d_model) + self.width * d_model
