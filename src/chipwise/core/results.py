"""Base of public results: a one-line repr, a small table in notebooks, a dict, and a data frame."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from chipwise.core.digest import plain
from chipwise.errors import ChipwiseError, counted

if TYPE_CHECKING:
    import pandas

Row = Mapping[str, object]


class Result:
    """Mixin for result classes. A class defines ``headline`` and ``rows``; all other methods use these two."""

    __slots__ = ()

    def headline(self) -> str:
        """The result in one line of text."""
        raise NotImplementedError

    def rows(self) -> Sequence[Row]:
        """The result as a small table, one mapping per row, in SI units."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """All data of the result as plain values that JSON can store, in SI units."""
        return dict(plain(self))

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a pandas data frame.

        Raises:
            ChipwiseError: pandas is not installed.
        """
        return data_frame(self.rows())

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.headline()}>"

    def _repr_html_(self) -> str:
        return html_table(self.headline(), self.rows())


T = TypeVar("T", bound=Result)


class ResultTable(Sequence[T], Generic[T]):
    """An immutable list of results of one kind, which is displayed as a table.

    >>> import chipwise
    >>> chipwise.runtimes()[0].name
    'vllm'
    """

    def __init__(self, title: str, items: Sequence[T]) -> None:
        self.title, self._items = title, tuple(items)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        return self._items[index]

    def rows(self) -> list[Row]:
        """The rows of all results in the list."""
        return [row for item in self._items for row in item.rows()]

    def to_dict(self) -> list[dict[str, Any]]:
        """All results as plain values that JSON can store."""
        return [item.to_dict() for item in self._items]

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a pandas data frame.

        Raises:
            ChipwiseError: pandas is not installed.
        """
        return data_frame(self.rows())

    def __repr__(self) -> str:
        return f"<{self.title}: {counted(len(self), 'row')}>"

    def __str__(self) -> str:
        rows = self.rows()
        names = list(rows[0]) if rows else []
        cells = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
        ]
        return "\n".join([self.title, *lines])

    def _repr_html_(self) -> str:
        return html_table(self.title, self.rows())


def data_frame(rows: Sequence[Row]) -> pandas.DataFrame:
    """``rows`` as a pandas data frame.

    Raises:
        ChipwiseError: pandas is not installed.
    """
    try:
        import pandas
    except ModuleNotFoundError:
        raise ChipwiseError("pandas is not installed; it comes with: pip install pandas") from None
    return pandas.DataFrame(list(rows))


def html_table(title: str, rows: Sequence[Row]) -> str:
    """A plain HTML table, for notebooks."""
    names = list(rows[0]) if rows else []
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_cell(row.get(name)))}</td>" for name in names) + "</tr>" for row in rows
    )
    caption = f"<caption>{html.escape(title)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
