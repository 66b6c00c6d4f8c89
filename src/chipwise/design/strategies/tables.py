"""Searches a table of measured architectures: every evaluation is a lookup in the table.

Use it for published benchmarks that measured every architecture (such as HW-NAS-Bench or the tables of Once-for-All and
HELP), or for your own tables. A row of the table is one architecture, with columns of choices and columns of
measurements. A column may contain one choice (``depth``) or a list of choices (``[3, 5, 3, 7]``,
``|conv~0|+|skip~0|conv~1|``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import Float64Array
from chipwise.core.csvfile import read_rows
from chipwise.design.strategies.executors import Outcome
from chipwise.design.strategies.strategy import Goal, Limit, Problem, Rows
from chipwise.errors import InputError, SpecError, nearest, short

_LIMIT = re.compile(r"^\s*(<=|>=)\s*([-+.\deE]+)\s*$")
_BETWEEN = re.compile(r"[\[\](){}|;,+\s]+")  # separators between the choices in one cell
_CHUNK = 2_000_000  # comparisons per batch


@dataclass(frozen=True)
class MeasuredTable:
    """A table of measured architectures as a search problem, with the lookup that evaluates its rows.

    Attributes:
        problem: The search problem, for :func:`chipwise.design.strategies.optimise`. A row that is not in the table
            counts as the table's most similar row (with the fewest differing choices; the first one of several), so
            only measured architectures are evaluated.
        values: Maps each variable's name to its values; a value's position is the integer that encodes it.
        rows: The table's architectures as integers, (n, d).
        objectives: Measured objectives, in the goals' directions, (n, m).
        violations: Violations of limits, (n, k): at most 0 if a limit is met, else the excess as a share of the limit.
    """

    problem: Problem
    values: Mapping[str, tuple[str | float, ...]]
    rows: Rows
    objectives: Float64Array
    violations: Float64Array
    _number: Mapping[bytes, int] = field(repr=False)

    def evaluate(self, row: Rows) -> Outcome:
        """Looks up the measurements of one architecture (d,)."""
        number = self.number(row)
        return Outcome(objectives=self.objectives[number].tolist(), violations=self.violations[number].tolist())

    def number(self, row: Rows) -> int:
        """Index of the table's row for ``row`` (d,), or of the most similar row."""
        return int(_numbers(np.atleast_2d(row), self.rows, self._number)[0])

    def choices(self, row: Rows) -> dict[str, str | float]:
        """Maps each variable's name to its value in one architecture (d,)."""
        found = self.rows[self.number(row)]
        return {name: values[i] for (name, values), i in zip(self.values.items(), found, strict=True)}


def problem_from_table(
    path: str | Path,
    *,
    choices: Sequence[str],
    objectives: Mapping[str, str] | Sequence[str],
    limits: Mapping[str, str] | None = None,
    free: Sequence[str] = (),
) -> MeasuredTable:
    """Reads a CSV table of measured architectures as a search problem.

    Args:
        path: The CSV file, with one architecture per line.
        choices: The columns that identify the architecture. A cell with a list becomes several variables (``arch[0]``,
            ``arch[1]``, …); shorter lists are padded with ``-``.
        objectives: Columns to optimise, with ``minimize`` (the default for a sequence) or ``maximize``.
        limits: Columns with ``<= number`` or ``>= number`` in the column's own unit.
        free: Objectives and limited columns that the search may use without an evaluation, such as a latency from a
            lookup table or a cost model.

    Raises:
        SpecError: The file is missing or not a table, lacks a column, has text where a number is needed, or has two
            lines with different measurements of one architecture.
        InputError: An argument is invalid.
    """
    goals = dict(objectives) if isinstance(objectives, Mapping) else dict.fromkeys(objectives, "minimize")
    bounds = {name: _bound(name, text) for name, text in (limits or {}).items()}
    _check(choices, goals, bounds, free)
    rows = read_rows(Path(path), required=[*choices, *goals, *bounds])
    values, encoded = _encoded(rows, choices, file=str(path))
    measured = {name: _column(rows, name, file=str(path)) for name in {**goals, **bounds}}
    objective = np.stack([measured[name] for name in goals], axis=1)
    excess = np.zeros((len(rows), len(bounds)))
    for k, (name, (sign, limit)) in enumerate(bounds.items()):
        excess[:, k] = sign * (measured[name] - limit) / abs(limit)
    kept, number = _distinct(encoded, np.hstack([objective, excess]), file=str(path))
    encoded, objective, excess = encoded[kept], objective[kept], excess[kept]
    free_goals = [i for i, name in enumerate(goals) if name in free]
    free_limits = [i for i, name in enumerate(bounds) if name in free]

    def canonical(asked: Rows) -> Rows:
        return np.asarray(encoded[_numbers(asked, encoded, number)])

    def known(asked: Rows) -> tuple[Float64Array, Float64Array]:
        found = _numbers(asked, encoded, number)
        return objective[found][:, free_goals], excess[found][:, free_limits]

    problem = Problem(
        cardinalities=np.array([len(each) for each in values.values()]),
        goals=tuple(Goal(name=name, direction=_direction(way), free=name in free) for name, way in goals.items()),
        limits=tuple(Limit(name=name, free=name in free) for name in bounds),
        free=known if free_goals or free_limits else None,
        canonical=canonical,
        kinds=tuple(re.sub(r"[\[\]\d_]+$", "", name) or name for name in values),
        sample=lambda count, rng: np.asarray(encoded[rng.integers(0, len(encoded), count)]),
    )
    return MeasuredTable(problem, values, encoded, objective, excess, number)


def _check(choices: Sequence[str], goals: Mapping[str, str], bounds: Mapping[str, object], free: Sequence[str]) -> None:
    if isinstance(choices, str) or not choices:
        raise InputError("choices: name the columns that identify an architecture")
    if not goals:
        raise InputError("objectives: name at least one column to optimise")
    both = sorted(set(choices) & {*goals, *bounds})
    if both or len(set(choices)) < len(choices):
        raise InputError(f"choices: {', '.join(both) or 'a column'} is named twice")
    for name in free:
        if name not in goals and name not in bounds:
            raise InputError(
                f"free: {short(name)} is neither an objective nor limited; {nearest(name, [*goals, *bounds])}"
            )


def _direction(text: str) -> Literal["minimize", "maximize"]:
    ways: dict[str, Literal["minimize", "maximize"]] = {"minimize": "minimize", "maximize": "maximize"}
    if text not in ways:
        raise InputError(f"objectives: a direction must be minimize or maximize, not {short(text)}")
    return ways[text]


def _bound(name: str, text: str) -> tuple[float, float]:
    """Parses a limit; returns a sign and the limit's number.

    The sign is 1 for ``<=`` and -1 for ``>=``, so that sign * (value - number) is the excess over the limit.
    """
    match = _LIMIT.match(str(text))
    try:
        limit = math.nan if match is None else float(match[2])
    except ValueError:
        limit = math.nan
    if match is None or not math.isfinite(limit) or limit == 0:
        raise InputError(f"limits: {name}: write <= or >= and a number other than 0, not {short(text)}")
    return (1.0 if match[1] == "<=" else -1.0), limit


def _encoded(
    rows: Sequence[Mapping[str, str]], choices: Sequence[str], *, file: str
) -> tuple[dict[str, tuple[str | float, ...]], Rows]:
    """The values of each variable, and the table's rows as integers, (n, d)."""
    variables: dict[str, list[str]] = {}
    for name in choices:
        cells = [[part for part in _BETWEEN.split(row[name]) if part] for row in rows]
        empty = next((i for i, cell in enumerate(cells) if not cell), None)
        if empty is not None:
            raise SpecError("is empty", file=file, field=f"line {empty + 2}, {name}")
        longest = max(map(len, cells))
        for place in range(longest):
            label = name if longest == 1 else f"{name}[{place}]"
            variables[label] = [cell[place] if place < len(cell) else "-" for cell in cells]
    values: dict[str, tuple[str | float, ...]] = {}
    columns = []
    for label, texts in variables.items():
        known, index = _ordered(texts)
        values[label] = known
        columns.append(index)
    return values, np.stack(columns, axis=1)


def _ordered(texts: Sequence[str]) -> tuple[tuple[str | float, ...], NDArray[np.int64]]:
    """The distinct values of a column (sorted numbers, then text), and the index of each cell's value."""
    numbers = [_number(text) for text in texts]
    cells: list[str | float] = [text if number is None else number for text, number in zip(texts, numbers, strict=True)]
    known = sorted(set(cells), key=lambda value: (isinstance(value, str), value))
    place = {value: i for i, value in enumerate(known)}
    return tuple(known), np.array([place[cell] for cell in cells], np.int64)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _column(rows: Sequence[Mapping[str, str]], name: str, *, file: str) -> Float64Array:
    found = np.empty(len(rows))
    for i, row in enumerate(rows):
        value = _number(row[name])
        if value is None:
            raise SpecError(f"must be a number, not {short(row[name])}", file=file, field=f"line {i + 2}, {name}")
        found[i] = value
    return found


def _distinct(rows: Rows, measured: Float64Array, *, file: str) -> tuple[list[int], dict[bytes, int]]:
    """The index of the first line of each architecture, and each architecture's position among these."""
    kept: list[int] = []
    number: dict[bytes, int] = {}
    for i, row in enumerate(np.ascontiguousarray(rows)):
        key = row.tobytes()
        if key not in number:
            number[key] = len(kept)
            kept.append(i)
        elif not np.array_equal(measured[i], measured[kept[number[key]]]):
            raise SpecError(
                f"holds the architecture of line {kept[number[key]] + 2} with different measurements; average "
                "them first, or add the column that tells them apart to `choices`",
                file=file,
                field=f"line {i + 2}",
            )
    return kept, number


def _numbers(asked: Rows, rows: Rows, number: Mapping[bytes, int]) -> NDArray[np.int64]:
    """For each requested row, the index of the equal row in the table, or else of the first most similar one."""
    wanted = np.ascontiguousarray(asked, np.int64)
    found = np.array([number.get(row.tobytes(), -1) for row in wanted], np.int64)
    missing = np.flatnonzero(found < 0)
    step = max(1, _CHUNK // max(1, rows.size))
    for start in range(0, len(missing), step):
        some = missing[start : start + step]
        found[some] = (wanted[some, None] != rows[None]).sum(axis=2).argmin(axis=1)
    return found
