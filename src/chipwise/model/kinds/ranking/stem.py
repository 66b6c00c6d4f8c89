"""The stem of a ranking model: a user's item history and the candidates, as rows of embedding tables.

A request is a history of items and a number of candidates. Each position is its item's row in a table, combined with
the sum of its tags' rows (an embedding bag) if items have tags.

References:
    Self-attention over a history: Kang and McAuley 2018, Self-Attentive Sequential Recommendation, arXiv:1808.09781.
    Candidates as positions after the history: Zhai et al. 2024, Actions Speak Louder than Words (HSTU, M-FALCON),
        arXiv:2402.17152.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from chipwise.core.fields import check_fields, not_negative, positive
from chipwise.errors import SpecError
from chipwise.model.arch.trunk import Head, Reads, Stem, Trunk
from chipwise.model.kinds.tables import table_name

MOST_ROWS = 10**12  # largest number of rows in a table
RANKED = "a model that reads candidates needs head: scores or head: similarity, and these heads need candidates"
FUSIONS = ("qkv", "up", "tables")
"""Groups of operators that a ranking model's graph may fuse into one: attention's projections (``qkv``), a
feed-forward's gate and up projections (``up``), and the look-ups of an item and its tags (``tables``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingStem(Stem):
    """Reads ``history`` items, then ``candidates``. Each position is its item's table row plus the rows of its tags.

    Shorter histories begin with padding, which is row 0 of each table. If ``width`` is not the model's width, a
    matrix follows; its input is an item's row concatenated with the sum of its tags' rows.
    """

    reads: ClassVar[Reads] = "request"
    does: ClassVar[str] = "rank candidates"
    calibration: ClassVar[str] = "ranking"
    ranks: ClassVar[bool] = True
    fusions: ClassVar[tuple[str, ...]] = FUSIONS
    items: int
    history: int
    candidates: int  # candidates per request
    width: int = 0  # width of the tables' rows; 0 is the model's
    tags: int = 0  # rows of the tag table
    bag: int = 0  # most tags per item; shorter bags are padded with 0
    bias: bool = True  # whether the matrix has a bias
    shards: int = 1  # devices over which the tables' rows are sharded

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "items", most=MOST_ROWS)
        positive(self, "history", "candidates", "shards", most=1_000_000)
        not_negative(self, "width", "tags", "bag")
        if (self.tags > 0) != (self.bag > 0):
            raise SpecError(
                "tags need both a number of table rows (tags) and a maximum number per item (bag)", field="bag"
            )

    @property
    def tokens(self) -> int:
        """Sequence length of a request: history and candidates."""
        return self.history + self.candidates

    @property
    def values(self) -> int:
        """Input width of the matrix after the tables; 0 if there is no matrix."""
        return self.width * (2 if self.bag else 1)

    @property
    def table(self) -> str:
        """The word for the tables' width in a run file, such as ``w16``."""
        return table_name(self.width)

    def table_width(self, d_model: int) -> int:
        """Number of values per table row."""
        return self.width or d_model

    def table_rows(self) -> int:
        """Number of rows in all tables together."""
        return self.items + 1 + (self.tags + 1 if self.bag else 0)

    def matrices(self, d_model: int) -> tuple[tuple[int, int], ...]:
        """Input and output width of the matrix after the tables, if there is one."""
        return ((self.values, d_model),) if self.width else ()

    def check(self, trunk: Trunk, head: Head) -> None:
        """Checks that ``head`` ranks candidates."""
        if not head.ranks:
            raise SpecError(RANKED, field="head")

    def parameters(self, d_model: int) -> int:
        """Number of parameters of the tables and the matrix."""
        matrix = (self.values + self.bias) * d_model if self.width else 0
        return self.table_rows() * self.table_width(d_model) + matrix


class Ranks(Head):
    """A head that ranks candidates."""

    __slots__ = ()
    ranks: ClassVar[bool] = True

    def check(self, trunk: Trunk, stem: Stem) -> None:
        """Checks that the stem reads candidates."""
        if not stem.ranks:
            raise SpecError(RANKED, field="head")


@dataclass(frozen=True, slots=True)
class Scores(Ranks):
    """A matrix of one row, with a bias, that scores each candidate."""

    name: ClassVar[str] = "scores"

    def output_rows(self, stem: Stem) -> int:
        """Returns 1: the matrix outputs a single score."""
        return 1

    def parameters(self, trunk: Trunk, stem: Stem) -> int:
        """Number of parameters of the row and its bias."""
        return trunk.d_model + 1


@dataclass(frozen=True, slots=True)
class Similarity(Ranks):
    """Scores a candidate by the dot product of its last state with its input embedding."""

    name: ClassVar[str] = "similarity"
