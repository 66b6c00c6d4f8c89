"""Reads aiconfigurator's tables: finds the files, keeps devices that have a data sheet, and marks held-out rows."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chipwise.errors import MissingExtra, UnknownName
from chipwise.hardware import datasheet
from chipwise.hardware.datasheet import DeviceProfile

HELD_OUT = Path(__file__).parent / "data"
STACKS = ("vllm", "sglang", "trtllm")
Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One parquet file: kernels of one kind, device, stack and version; ``columns`` has its columns (latency in ms)."""

    device: DeviceProfile
    stack: str
    version: str
    columns: Columns


def tables(root: Path, family: str, name: str) -> Iterator[Table]:
    """The newest ``data/DEVICE/FAMILY/STACK/VERSION/NAME_perf.parquet`` under ``root`` for each device and stack."""
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "tables", of="chipwise-fitting") from error
    for folder in sorted((root / "data").glob(f"*/{family}/*")):
        versions = sorted(folder.glob(f"*/{name}_perf.parquet"), key=lambda path: _version(path.parent.name))
        if folder.name not in STACKS or not versions:
            continue
        try:
            device = datasheet.load(folder.parts[-3])
        except UnknownName:
            continue
        table = parquet.read_table(versions[-1])
        columns = {key: table.column(key).to_numpy(zero_copy_only=False) for key in table.column_names}
        yield Table(device=device, stack=folder.name, version=versions[-1].parent.name, columns=columns)


def held_out(kind: str) -> set[tuple[int, ...]]:
    """Reads the keys in ``predict/data/heldout-KIND.csv``; no fit of any device or stack uses rows with these keys."""
    with (HELD_OUT / f"heldout-{kind}.csv").open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        next(rows)
        return {tuple(int(cell) for cell in row) for row in rows}


def within(columns: Columns, names: tuple[str, ...], keys: set[tuple[int, ...]]) -> npt.NDArray[np.bool_]:
    """Marks the rows that have one of ``keys`` in the columns ``names``."""
    cells = zip(*(columns[name].tolist() for name in names), strict=True)
    return np.fromiter((row in keys for row in cells), dtype=bool)


def _version(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", name))
