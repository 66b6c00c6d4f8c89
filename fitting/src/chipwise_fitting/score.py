"""Scores predictions against measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from chipwise.errors import InputError, SpecError, counted
from chipwise.hardware import datasheet

LeaveOut = Literal["none", "model", "device", "family", "vendor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured row and its prediction, in SI units; ``predicted`` is None if the row cannot be predicted."""

    row_id: str
    subset: str
    truth: float
    predicted: float | None
    low: float | None = None
    high: float | None = None
    rival: float | None = None  # prediction of a simple rule
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Relative errors of a subset's predicted rows, as shares; ``inside`` is the share of truths in the 90 % intervals.

    ``rival_median`` is the median error of a simple rule on the same rows, if there is one for this kind. ``problem``
    says why the first row without a prediction has none.
    """

    subset: str
    rows: int
    answered: float
    mape: float
    median: float
    p90: float
    within_25: float
    inside: float | None
    rival_median: float | None = None
    problem: str = ""
    note: str = ""  # only in the first subset: figures that others have published


def measured(text: object, *, column: str, row: int, file: Path) -> float:
    """Reads the measured value in a cell.

    Args:
        text: The content of the cell.
        column: The cell's column.
        row: The cell's row; the first row below the head is 1.
        file: The table.

    Raises:
        SpecError: The content is not a number above zero.
    """
    try:
        value = float(str(text))
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        shown = repr(text) if str(text) else "empty"
        raise SpecError(f"must be a number above zero, not {shown}", field=f"row {row}, {column}", file=str(file))
    return value


def fold_of(device: str, leave_out: LeaveOut) -> str | None:
    """Returns the name of the fold that leaves out ``device``."""
    if leave_out in ("none", "model"):
        return None
    found = datasheet.load(device)
    return f"device:{found.name}" if leave_out == "device" else f"family:{found.family}"


def scores(rows: Sequence[Row]) -> list[Score]:
    """Scores all rows together, then each subset that has a predicted row.

    Raises:
        InputError: No row has a prediction; the message says why the first row has none.
    """
    if rows and all(row.predicted is None for row in rows):
        raise InputError(f"none of {counted(len(rows), 'row')} can be predicted; {_problem(rows)}")
    subsets = sorted({row.subset for row in rows})
    chosen = [("all", rows), *((name, [row for row in rows if row.subset == name]) for name in subsets)]
    return [found for name, part in chosen if (found := _score(name, part)) is not None]


def _problem(rows: Sequence[Row]) -> str:
    return next((f"row {row.row_id}: {row.problem}" for row in rows if row.predicted is None), "")


def _score(name: str, rows: Sequence[Row]) -> Score | None:
    pairs = [(row, row.predicted) for row in rows if row.predicted is not None]
    if not pairs:
        return None
    error = np.array([abs(predicted / row.truth - 1) for row, predicted in pairs])
    bounded = [row for row, _ in pairs if row.low is not None and row.high is not None]
    rival = [abs(row.rival / row.truth - 1) for row, _ in pairs if row.rival is not None]
    inside = [row.low <= row.truth <= row.high for row in bounded if row.low is not None and row.high is not None]
    return Score(
        subset=name,
        rows=len(rows),
        answered=len(pairs) / len(rows),
        mape=float(error.mean()),
        median=float(np.median(error)),
        p90=float(np.quantile(error, 0.9)),
        within_25=float((error < 0.25).mean()),
        inside=float(np.mean(inside)) if inside else None,
        rival_median=float(np.median(rival)) if rival else None,
        problem=_problem(rows),
    )
