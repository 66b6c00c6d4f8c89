"""Reads a user's table of texts from CSV, JSONL or Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from chipwise.core.files import parse_json, read_text
from chipwise.errors import DataError
from chipwise.training.data.parquet_files import read_columns

MOST_BYTES = 1_000_000_000


def text_rows(path: Path, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    """Reads the texts in ``columns``, row by row.

    Raises:
        DataError: The file is missing or broken, or a row lacks a text; the message names the row.
        MissingExtra: The package that reads the file is not installed.
    """
    for number, row in enumerate(_rows(path, columns), start=1):
        given = row if isinstance(row, Mapping) else {}
        texts = {name: value for name in columns if isinstance(value := given.get(name), str) and value.strip()}
        if lacking := [name for name in columns if name not in texts]:
            raise DataError(f"{path}: row {number} has no text {lacking[0]!r}; every row needs {', '.join(columns)}")
        yield texts


def _rows(path: Path, columns: Sequence[str]) -> Iterable[object]:
    if path.suffix == ".parquet":
        return (dict(zip(columns, row, strict=True)) for row in zip(*read_columns(path, columns), strict=True))
    text = read_text(path, most=MOST_BYTES)
    if path.suffix == ".csv":
        return csv.DictReader(io.StringIO(text, newline=""))
    lines = [line for line in text.splitlines() if line.strip()]
    return (parse_json(line, name=f"{path}, row {number}") for number, line in enumerate(lines, start=1))
