"""Reads and writes CSV tables. A bad cell is an error in one row; a bad file is an error for the whole table."""

from __future__ import annotations

import csv
import difflib
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from chipwise.core.files import check_output, read_text, write_atomic
from chipwise.errors import SpecError, nearest, short

MOST_TABLE_BYTES = 2**28


def read_rows(
    path: Path,
    *,
    required: Sequence[str],
    known: Iterable[str] | None = None,
    without: Iterable[str] = (),
    optional: Sequence[str] = (),
) -> list[dict[str, str]]:
    """The rows of a CSV file, as mappings from column to cell.

    The mappings contain the columns in ``known`` (by default all columns), except those in ``without``.

    Raises:
        SpecError: The file is missing, is not a table or has no rows; or it lacks a column of ``required``, has a
            column twice, or has a column whose name seems to be misspelled.
    """
    text = read_text(path, most=MOST_TABLE_BYTES)
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        columns = [name for name in (reader.fieldnames or ()) if name]
        for name in required:
            if name not in columns:
                raise SpecError(f"has no column {name!r}; {nearest(name, columns)}", file=str(path))
        _check_columns(columns, (*required, *optional), str(path))
        taken = (set(columns) if known is None else set(known)) - set(without)
        rows = [{key: (value or "").strip() for key, value in row.items() if key in taken} for row in reader]
    except csv.Error as error:
        raise SpecError(f"cannot be read as a CSV table: {error}", file=str(path)) from None
    if not rows:
        raise SpecError("holds no rows", file=str(path))
    return rows


def _check_columns(columns: Sequence[str], names: Sequence[str], file: str) -> None:
    for name in columns:
        if columns.count(name) > 1:
            raise SpecError(f"has the column {short(name)} twice; remove one of them", file=file)
        close = difflib.get_close_matches(name[:50], names, n=1, cutoff=0.75) if name not in names else []
        if close and close[0] not in columns:
            raise SpecError(f"unknown column {short(name)}; did you mean {close[0]!r}?", file=file)


def own_columns(path: Path, known: Iterable[str]) -> list[str]:
    """Names of a CSV file's columns that are not in ``known``. Callers copy these columns unchanged."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        return sorted(set(filter(None, next(csv.reader(file), []))) - set(known))


def write_rows(path: Path, rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> None:
    """Writes ``rows`` as CSV.

    Raises:
        StorageError: The file cannot be written.
    """
    check_output(path)
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, columns, extrasaction="ignore", restval="")
    writer.writeheader()
    writer.writerows(rows)
    write_atomic(path, stream.getvalue())


def whole(row: Mapping[str, str], name: str, *, default: int | None) -> int:
    """The whole number in a cell; ``default`` if the cell is empty.

    Raises:
        SpecError: The cell is not a whole number, or it is empty and there is no default.
    """
    if not row.get(name) and default is not None:
        return default
    value = number_in(row, name)
    if not math.isfinite(value) or value != int(value):
        raise SpecError(f"must be a whole number, not {row[name]!r}", field=name)
    return int(value)


def number_in(row: Mapping[str, str], name: str) -> float:
    """The number in a cell; NaN if the cell contains something else.

    Raises:
        SpecError: The cell is empty.
    """
    if not row.get(name):
        raise SpecError("is empty", field=name)
    try:
        return float(row[name])
    except ValueError:
        return math.nan
