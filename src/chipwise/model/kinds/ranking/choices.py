"""Choices that only spaces of ranking models have: attention, width of the tables, how candidates are scored."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from chipwise.core.fields import check_fields, later, positive
from chipwise.errors import SpecError
from chipwise.model.kinds.ranking.stem import MOST_ROWS, RankingStem

RANKING_CHOICES = ("mixing", "table", "score")
FULL = "full"
_TABLE = re.compile(r"w\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingSpace:
    """What requests hold, and the choices that only ranking models have; each lists the values that may be chosen.

    ``mixing`` is ``attention`` (softmax) or ``hstu`` (pointwise attention with a gate; its feed-forward may be
    ``none``); ``table`` is ``full`` for rows as wide as the model, or ``w16`` for rows of 16 values and a matrix after
    them; ``score`` is ``similarity`` to what went into the layers, or ``scores`` of a matrix.
    """

    choices: ClassVar[tuple[str, ...]] = RANKING_CHOICES
    noun: ClassVar[str] = "requests"
    models: ClassVar[str] = "ranking models"

    items: int
    history: int
    candidates: int
    mixing: tuple[Literal["attention", "hstu"], ...] = ("attention",)
    table: tuple[str, ...] = (FULL,)
    score: tuple[Literal["similarity", "scores"], ...] = ("similarity",)
    tags: int = later(0)  # rows of the table of tags
    bag: int = later(0)  # tags of an item, at most

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "items", most=MOST_ROWS)
        positive(self, "history", "candidates", most=1_000_000)
        for table in self.table:
            if table != FULL and not (_TABLE.fullmatch(table) and int(table[1:])):
                raise SpecError(f"{table!r} is no table; write full, or w16 for rows of 16 values", field="table")
        self.stem_of({"table": FULL})  # checks tags and bag

    @property
    def outputs(self) -> int:
        """Rows of the head's matrix."""
        return 1

    def conditions(self) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """None: all choices go together."""
        return iter(())

    def stem_of(self, choices: Mapping[str, Any]) -> RankingStem:
        """The stem that ``choices`` describe."""
        return RankingStem(
            items=self.items,
            history=self.history,
            candidates=self.candidates,
            width=width_of(choices["table"]),
            tags=self.tags,
            bag=self.bag,
        )

    def request_tokens(self, choices: Mapping[str, Any]) -> int:
        """Positions of a request."""
        return self.stem_of(choices).tokens


def width_of(table: str) -> int:
    """Values of a table's row, as the run file writes it; 0 is the model's width.

    >>> width_of("w16"), width_of("full")
    (16, 0)
    """
    return 0 if table == FULL else int(table[1:])


def table_name(stem: RankingStem) -> str:
    """The tables as the run file writes them."""
    return f"w{stem.width}" if stem.width else FULL
