"""CSV tables whose rows are read one by one: a bad row is that row's error, a bad file is the file's."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from chipwise.core.errors import SpecError, StorageError, nearest


def read_rows(
    path: Path, *, required: Sequence[str], known: Iterable[str] | None = None, without: Iterable[str] = ()
) -> list[dict[str, str]]:
    """The rows of a CSV file by column name: columns of ``known`` (all, unless given) but those of ``without``.

    Raises:
        SpecError: The file is missing, not a table, or lacks a column of ``required``.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = [name for name in (reader.fieldnames or ()) if name]
            for name in required:
                if name not in columns:
                    raise SpecError(f"has no column {name!r}; {nearest(name, columns)}", file=str(path))
            taken = (set(columns) if known is None else set(known)) - set(without)
            rows = [{key: (value or "").strip() for key, value in row.items() if key in taken} for row in reader]
    except FileNotFoundError:
        raise SpecError("there is no such file", file=str(path)) from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SpecError(f"cannot be read as a CSV table: {error}", file=str(path)) from None
    if not rows:
        raise SpecError("holds no rows", file=str(path))
    return rows


def write_rows(path: Path, rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> None:
    """Writes ``rows`` as CSV.

    Raises:
        StorageError: The file cannot be written.
    """
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore", restval="")
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}") from None


def whole(row: Mapping[str, str], name: str, *, default: int | None) -> int:
    """The whole number in a cell; ``default`` where it is empty.

    Raises:
        SpecError: It is not a whole number, or empty without a default.
    """
    text = row.get(name) or ""
    if not text:
        if default is None:
            raise SpecError("is empty", field=name)
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value != int(value):
        raise SpecError(f"must be a whole number, not {text!r}", field=name)
    return int(value)
