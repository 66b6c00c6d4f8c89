"""Lays out tables and paragraphs as plain text of a given width. Lines never break between a number and its unit.

A table that is too wide is shrunk in this order: wrap columns of prose, omit the least important columns (and say
which), wrap prose more narrowly, wrap the first column. Text is never truncated.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

GAP = 2  # spaces between columns
NARROWEST = 20  # width to which prose is wrapped before other columns are left out
UNITS = r"%|[nµmp]?s|min|h|d|[nµmk]?[WJ]|[kMGTP]?(?:B|FLOP|tokens)|USD|million|tokens|devices?|requests?|CPU"
_QUANTITY = re.compile(rf"(?<=\d) (?=(?:{UNITS})(?![A-Za-z]))")
_SPLIT = re.compile(r"[^/_\-.@ ]*[/_\-.@ ]?")
_KEPT = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column.

    A ``prose`` column may wrap between words. Columns with ``drop`` above 0 may be omitted, the highest ``drop`` first.
    """

    head: str = ""
    right: bool = False
    prose: bool = False
    drop: int = 0


def numeric(*heads: str | tuple[str, int]) -> list[Column]:
    """Right-aligned columns, one for each heading. A heading is a text, or a pair (text, ``drop``)."""
    pairs = ((head, 0) if isinstance(head, str) else head for head in heads)
    return [Column(head=head, right=True, drop=drop) for head, drop in pairs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table.

    A row is a list of cells, or a string, which becomes a heading inside the table. Cells may have several lines.
    """

    columns: Sequence[Column]
    rows: list[Sequence[str] | str] = field(default_factory=list)
    title: str = ""
    caption: str = ""

    def add(self, *cells: str) -> None:
        """Appends a row."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        self.rows.append(cells)

    def lines(self, width: int) -> Iterator[tuple[str, bool]]:
        """The table's lines at ``width`` characters, each with a flag that marks headings."""
        for line in paragraph(self.title, width) if self.title else []:
            yield line, True
        shown, widths = self._fit(width)
        heads = [self.columns[i].head for i in shown]
        if any(heads):
            yield from ((line, True) for line in self._row(heads, shown, widths))
        for row in self.rows:
            if isinstance(row, str):
                yield from ((line, True) for line in paragraph(row, width))
            else:
                yield from ((line, False) for line in self._row([row[i] for i in shown], shown, widths))
        left_out = [
            column.head for i, column in enumerate(self.columns) if i not in shown and column.head and self._natural(i)
        ]
        captions = [self.caption] if self.caption else []
        captions += [f"(a wider terminal also shows: {', '.join(left_out)})"] if left_out else []
        for caption in captions:
            yield from ((line, False) for line in paragraph(caption, width))

    def _fit(self, width: int) -> tuple[list[int], list[int]]:
        """The columns to show, and the width of each column."""
        natural = [self._natural(i) for i in range(len(self.columns))]
        shown = [i for i, size in enumerate(natural) if size]
        least = [min(size, NARROWEST) if self.columns[i].prose else size for i, size in enumerate(natural)]
        while _total(least, shown) > width and any(self.columns[i].drop for i in shown):
            shown.remove(max(shown, key=lambda i: self.columns[i].drop))
        for i in reversed(shown):  # wrap prose more narrowly before the table exceeds the width
            if self.columns[i].prose and (excess := _total(least, shown) - width) > 0:
                least[i] = max(min(least[i], self._longest_word(i)), least[i] - excess)
        widths = dict.fromkeys(shown, 0) | {i: least[i] for i in shown}
        spare = width - _total(least, shown)
        if spare < 0:
            first = shown[0]
            widths[first] = max(min(NARROWEST // 2, widths[first]), widths[first] + spare)
        wanting = [i for i in shown if self.columns[i].prose and natural[i] > widths[i]]
        while spare > 0 and wanting:
            for i in list(wanting):
                extra = min(natural[i] - widths[i], -(-spare // len(wanting)), spare)
                widths[i] += extra
                spare -= extra
            wanting = [i for i in wanting if natural[i] > widths[i]]
        return shown, [widths[i] for i in shown]

    def _natural(self, i: int) -> int:
        cells = [row[i] for row in self.rows if not isinstance(row, str)]
        if not any(cells):
            return 0  # an empty column is not shown
        return max(len(line) for cell in (self.columns[i].head, *cells) for line in cell.split("\n"))

    def _longest_word(self, i: int) -> int:
        """Length of the column's longest word in characters; a quantity is one word."""
        cells = [self.columns[i].head, *(row[i] for row in self.rows if not isinstance(row, str))]
        return max(len(word) for cell in cells for word in _QUANTITY.sub(_KEPT, cell).split(" "))

    def _row(self, cells: Sequence[str], shown: Sequence[int], widths: Sequence[int]) -> Iterator[str]:
        wrapped = [
            [part for line in cell.split("\n") for part in _wrapped(line, size)]
            for cell, size in zip(cells, widths, strict=True)
        ]
        for k in range(max(map(len, wrapped))):
            parts = [lines[k] if k < len(lines) else "" for lines in wrapped]
            placed = [
                part.rjust(size) if self.columns[i].right else part.ljust(size)
                for part, size, i in zip(parts, widths, shown, strict=True)
            ]
            yield (" " * GAP).join(placed).rstrip()


def _total(widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(widths[i] for i in shown) + GAP * (len(shown) - 1)


def _wrapped(text: str, width: int) -> list[str]:
    """Splits ``text`` into lines of at most ``width`` characters, between words or at separators in long names."""
    if len(text) <= width:
        return [text]
    lines = [line for word_line in paragraph(text, width) for line in _split(word_line, width)]
    return lines or [""]


def _split(text: str, width: int) -> Iterator[str]:
    """Breaks a word that is too long, such as ``organisation/model-name``, after separators."""
    while len(text) > width:
        at, used = 0, 0
        for piece in _SPLIT.findall(text):
            used += len(piece)
            if used > width:
                break
            at = used
        at = at or width
        yield text[:at]
        text = text[at:]
    yield text


def paragraph(text: str, width: int, *, indent: int = 0, hang: int = 0) -> list[str]:
    """Wraps ``text`` to ``width`` characters.

    The first line is indented by ``indent`` spaces, all other lines by ``indent + hang``. Lines never break between a
    number and its unit, or inside a word.
    """
    kept = _QUANTITY.sub(_KEPT, text)
    lines = textwrap.wrap(
        kept,
        width,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hang),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_KEPT, " ") for line in lines]
