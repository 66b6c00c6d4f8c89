"""Rows of a benchmark, written one by one: an interrupted benchmark resumes where it stopped."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from provenance import COLUMNS as ORIGIN
from provenance import here

Row = dict[str, str]


def read(path: Path) -> list[Row]:
    """The rows in ``path``; none if there is no such file."""
    if not path.exists():
        return []
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def write(path: Path, rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> None:
    """Writes ``rows`` with ``columns`` and those of their date, machine and versions."""
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, (*columns, *ORIGIN), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def add(rows: list[Row], row: Mapping[str, str], path: Path, columns: Sequence[str]) -> None:
    """Appends and prints ``row``, and writes all rows with their date, machine and versions to ``path``."""
    rows.append({**row, **here()})
    print(*row.values(), sep="  ", flush=True)
    write(path, rows, columns)
