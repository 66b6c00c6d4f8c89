"""The search choices that only ranking models have: kind of attention, width of tables, kind of score."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from chipwise.core.fields import check_fields, later, positive
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.layer import AnyFeedForward, Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.choices import Choices, Chosen, Whole
from chipwise.model.kinds.ranking.stem import MOST_ROWS, RankingStem, Scores, Similarity
from chipwise.model.kinds.tables import FULL, check_tables, table_width


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingSpace(Choices):
    """The sizes of a request, and the search choices that only ranking models have. Each choice lists its options.

    ``mixing`` is ``attention`` (softmax) or ``hstu`` (pointwise attention with a gate; its feed-forward may be
    ``none``). ``table`` is ``full`` for rows as wide as the model, or ``w16`` for rows of 16 values followed by a
    matrix. ``score`` is ``similarity`` (the dot product with the candidate's embedding) or ``scores`` (a learned
    matrix).
    """

    choices: ClassVar[tuple[str, ...]] = ("mixing", "table", "score")
    noun: ClassVar[str] = "requests"
    models: ClassVar[str] = "ranking models"
    calibration: ClassVar[str] = RankingStem.calibration
    bare: ClassVar[bool] = True

    items: int
    history: int
    candidates: int
    mixing: tuple[Literal["attention", "hstu"], ...] = ("attention",)
    table: tuple[str, ...] = (FULL,)
    score: tuple[Literal["similarity", "scores"], ...] = ("similarity",)
    tags: int = later(0)  # rows of the tag table
    bag: int = later(0)  # most tags per item

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "items", most=MOST_ROWS)
        positive(self, "history", "candidates", most=1_000_000)
        check_tables(self.table)
        self.stem_of({"table": FULL})  # checks tags and bag

    @property
    def outputs(self) -> int:
        """Number of rows in the head's matrix."""
        return 1

    def stem_of(self, choices: Chosen) -> RankingStem:
        """The stem that ``choices`` describe."""
        return RankingStem(
            items=self.items,
            history=self.history,
            candidates=self.candidates,
            width=table_width(choices["table"]),
            tags=self.tags,
            bag=self.bag,
        )

    def layer(self, chosen: Chosen, parts: tuple[int, ...], *, head_size: int, ffn: AnyFeedForward | None) -> Layer:
        """A layer with position biases in its attention, but without biases in its matrices."""
        heads, kv_heads = parts
        attention = Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_size=head_size,
            rope=False,
            relative_buckets=self.history + 1,
            pointwise=chosen["mixing"] == "hstu",
        )
        return Layer(attention=attention, ffn=ffn)

    def arch(self, chosen: Chosen, layers: Iterable[Layer], whole: Whole) -> ArchSpec:
        """Builds the ranking model from ``layers`` and from the tables and scores that ``chosen`` describes."""
        stem, head = self.stem_of(chosen), Scores() if chosen["score"] == Scores.name else Similarity()
        return whole.around(layers)(stem=stem, head=head, max_tokens=self.history + 1, positions="none")

    def request_tokens(self, chosen: Chosen) -> int:
        """Sequence length of a request: history and candidates."""
        return self.stem_of(chosen).tokens
