"""The search choice that only text classifiers have: the width of the word table."""

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
    """The sizes of input texts, and the search choice that only text classifiers have, with its options.

    A text is a sequence of word numbers below ``words``; 0 stands for padding, 1 for any unknown word. ``table`` is
    ``full`` for rows as wide as the model, or ``w16`` for rows of 16 values followed by a matrix.
    """

    choices: ClassVar[tuple[str, ...]] = ("table",)
    noun: ClassVar[str] = "texts"
    models: ClassVar[str] = "text classifiers"
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
        """Number of rows in the head's matrix."""
        return self.classes

    def stem_of(self, chosen: Chosen) -> SentenceStem:
        """The stem that ``chosen`` describes."""
        return SentenceStem(words=self.words, tokens=self.size, width=table_width(chosen["table"]))

    def layer(self, chosen: Chosen, parts: tuple[int, ...], *, head_size: int, ffn: AnyFeedForward | None) -> Layer:
        """A layer with biases as in BERT."""
        return bidirectional(parts, head_size=head_size, ffn=ffn)

    def arch(self, chosen: Chosen, layers: Iterable[Layer], whole: Whole) -> ArchSpec:
        """Builds the classifier from ``layers`` and from the word table that ``chosen`` describes."""
        stem, head = self.stem_of(chosen), Classes(count=self.classes, pooling="mean")
        return whole.around(layers, bias=True)(stem=stem, head=head, max_tokens=self.size, positions="learned")

    def request_tokens(self, chosen: Chosen) -> int:
        """Sequence length of a request."""
        return self.size

    def other_input(self, arch: ArchSpec, *, run: str) -> str:
        """An error message if ``arch`` cannot read the texts of ``run``; else empty."""
        if not isinstance(arch.stem, SentenceStem):
            return f"{arch.name} does not classify texts, but the data of {run} are texts"
        got = {"size": arch.stem.tokens, "words": arch.stem.words, "classes": arch.outputs}
        return other_sizes(arch, run=run, got=got, wanted={name: getattr(self, name) for name in got})
