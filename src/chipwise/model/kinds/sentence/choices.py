"""Choices that only text classifiers have: the width of the word table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from chipwise.core.fields import check_fields, positive
from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Classes
from chipwise.model.arch.layer import AnyFeedForward, Layer
from chipwise.model.kinds.choices import Choices, Chosen, Whole, bidirectional, other_sizes
from chipwise.model.kinds.sentence.stem import SentenceStem
from chipwise.model.kinds.tables import FULL, check_tables, table_width


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceSpace(Choices):
    """The input texts, and the choice that only text classifiers have; it lists the possible values.

    A text is a sequence of word numbers below ``words``: 0 is padding, 1 is any unknown word. ``table`` is ``full`` for
    rows as wide as the model, or ``w16`` for rows of 16 values followed by a matrix.
    """

    choices: ClassVar[tuple[str, ...]] = ("table",)
    noun: ClassVar[str] = "texts"
    models: ClassVar[str] = "classifiers of texts"
    calibration: ClassVar[str] = SentenceStem.calibration

    size: int  # words per text
    words: int  # rows of the word table
    classes: int
    table: tuple[str, ...] = (FULL,)

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "size", "classes", most=65_536)
        check_tables(self.table)
        if self.words < 3:
            raise SpecError(f"must be at least 3, not {self.words}", field="words")
        self.stem_of({"table": FULL})  # checks the sizes

    @property
    def outputs(self) -> int:
        """Rows of the head's matrix."""
        return self.classes

    def stem_of(self, chosen: Chosen) -> SentenceStem:
        """The stem that ``chosen`` describes."""
        return SentenceStem(words=self.words, tokens=self.size, width=table_width(chosen["table"]))

    def layer(self, chosen: Chosen, parts: tuple[int, ...], *, head_size: int, ffn: AnyFeedForward | None) -> Layer:
        """A layer with BERT's biases."""
        return bidirectional(parts, head_size=head_size, ffn=ffn)

    def arch(self, chosen: Chosen, layers: Iterable[Layer], whole: Whole) -> ArchSpec:
        """The classifier of ``layers`` with the word table that ``chosen`` describes."""
        return ArchSpec(
            name=whole.name,
            stem=self.stem_of(chosen),
            head=Classes(count=self.classes, pooling="mean"),
            d_model=whole.d_model,
            layers=tuple(layers),
            max_tokens=self.size,
            norm=whole.norm,
            norm_bias=whole.norm == "layernorm",
            positions="learned",
        )

    def request_tokens(self, chosen: Chosen) -> int:
        """Positions of a request."""
        return self.size

    def other_input(self, arch: ArchSpec, *, run: str) -> str:
        """Why ``arch`` cannot read this run's texts; empty if it can."""
        if not isinstance(arch.stem, SentenceStem):
            return f"{arch.name} does not tell texts apart, which {run} has"
        got = {"size": arch.stem.tokens, "words": arch.stem.words, "classes": arch.outputs}
        return other_sizes(arch, run=run, got=got, wanted={name: getattr(self, name) for name in got})
