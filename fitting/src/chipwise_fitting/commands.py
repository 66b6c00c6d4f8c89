"""Functions that the commands ``fit`` and ``validate`` run."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from chipwise.core.csvfile import write_rows
from chipwise.core.files import check_output
from chipwise.errors import InputError, MissingExtra, SpecError, UnknownName
from chipwise.predict.kernels.bounded import DATA
from chipwise.predict.served import batching
from chipwise_fitting import laboratory
from chipwise_fitting.score import LeaveOut, Row, Score, scores

FITS = ("gemm", "attention", "latent", "experts", "collective", "scan", "power", "serving")
"""Kinds of fits: kernels are fitted to aiconfigurator's tables, ``serving`` to its sample of served runs. The other
kinds, ``edge`` and those in ``TABLES``, are fitted to a table of measured runs that the caller names.
"""

PREDICTED = {"gemm": "latency_s", "attention": "latency_s", "serving": "tpot_s", "power": "power_w"}
"""Name of the column with the predictions, by kind of measured rows."""

TABLES = ("vendors", "vision", "phones", "energy", "layers", "tails")
"""Kinds whose cost models are fitted to a table that the caller names; the module of each kind has the same name."""

_NAMED = ("edge", *TABLES)
_OF_SERVING = ("serving", "vendors", "energy", "tails")
"""Kinds whose constants are stored with the serving model."""

_READERS = {
    "gemm": ("kernel_rows", "gemm"),
    "attention": ("kernel_rows", "attention"),
    "serving": ("serving_rows", "serving"),
    "power": ("power_rows", "watts"),
}


def fit(
    kinds: Sequence[str], tables: Path | None, out: Path | None, *, on_progress: Callable[[str], None]
) -> list[str]:
    """Fits the models of ``kinds`` (all if empty) and writes their arrays; returns one report for each.

    Args:
        kinds: Names from ``FITS`` or ``TABLES``, or ``edge``.
        tables: The ``systems`` folder of aiconfigurator-core; None for the installed package's.
        out: A folder for the fitted arrays; None for chipwise's own data in a source checkout.
        on_progress: Called with a line of text at each step.

    Raises:
        UnknownName: There is no such kind.
        InputError: ``out`` is missing and chipwise is not a source checkout.
        MissingExtra: A package that reads or fits the tables is not installed.
    """
    for kind in kinds:
        if kind not in (*FITS, *_NAMED):
            raise UnknownName("kind of fit", kind, (*FITS, *_NAMED))
        if kind in _NAMED and tables is None:
            raise InputError(
                f"{kind} is fitted to a table of measured runs; name the table, or its folder, with --truth "
                "(in Python: tables=)"
            )
    if out is None and {"site-packages", "dist-packages"} & set(DATA.parts):
        raise InputError(f"name a folder for the fitted arrays with --out; {DATA} is the installed package")
    root = tables or _installed_tables()
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    reports = []
    for kind in kinds or FITS:
        module = importlib.import_module(f"chipwise_fitting.{kind}")
        own = laboratory.DATA.parent if kind == "layers" else batching.DATA.parent if kind in _OF_SERVING else DATA
        on_progress(f"{kind}: writing to {out or own}")
        reports.append(str(module.fit(root, out or own, progress=on_progress)))
    return reports


def validate(kind: str, truth: Path, out: Path, *, leave_out: LeaveOut = "none") -> list[Score]:
    """Predicts the measured rows of ``truth``, writes the predictions to ``out`` and returns their errors by subset.

    Raises:
        UnknownName: There is no such kind of rows.
        SpecError: The table is missing, lacks a column, or holds a measured value that is not above zero.
        MissingExtra: ``power`` needs pandas.
    """
    check_output(out, source=truth)
    if kind == "edge":
        if leave_out == "model":
            raise InputError("leave_out: edge has fits that leave out a device, a family or a vendor, not a model")
        from chipwise_fitting.edge import edge

        return scores(edge(truth, out, leave_out))
    if kind == "load":
        from chipwise_fitting.load import PUBLISHED, load

        found = scores(load(truth, out))
        return [replace(found[0], note=PUBLISHED), *found[1:]]
    if kind in TABLES:
        return _validate_table(kind, truth, out, leave_out)
    if kind not in _READERS:
        raise UnknownName("kind of measurement", kind, (*_READERS, *_NAMED, "load"))
    if leave_out in ("vendor", "model"):
        raise InputError(f"leave_out: {kind} has fits that leave out a device or a family, not a {leave_out}")
    module, function = _READERS[kind]
    try:
        reader: Callable[[Path, LeaveOut], list[Row]]
        reader = getattr(importlib.import_module(f"chipwise_fitting.{module}"), function)
        table = truth / f"{kind}.csv" if truth.is_dir() else truth
        rows = reader(table, leave_out)
    except SpecError as error:
        raise error.inside(file=str(table)) from None
    except ModuleNotFoundError as error:
        if error.name != "pandas":
            raise
        raise MissingExtra("pandas", "power", of="chipwise-fitting") from None
    predicted = PREDICTED[kind]
    write_rows(
        out,
        [
            {"row_id": row.row_id, predicted: row.predicted, "low_s": row.low, "high_s": row.high}
            for row in rows
            if row.predicted is not None
        ],
        ("row_id", predicted, "low_s", "high_s"),
    )
    return scores(rows)


def _validate_table(kind: str, truth: Path, out: Path, leave_out: LeaveOut) -> list[Score]:
    """Predicts a table of a kind in ``TABLES``; the output has one line for each row, with all predicted columns."""
    module = importlib.import_module(f"chipwise_fitting.{kind}")
    columns: dict[str, list[Row]] = module.rows(truth, leave_out)
    lines: dict[str, dict[str, object]] = {}
    for column, rows in columns.items():
        for row in rows:
            if row.predicted is not None:
                line = lines.setdefault(row.row_id, {"row_id": row.row_id})
                line |= {column: row.predicted, f"low_{column}": row.low, f"high_{column}": row.high}
    heads = [f"{end}{column}" for column in columns for end in ("", "low_", "high_")]
    write_rows(out, list(lines.values()), ("row_id", *heads))
    every = [
        row if len(columns) == 1 else replace(row, subset=f"{row.subset}, {column}")
        for column, rows in columns.items()
        for row in rows
    ]
    return scores(every)


def _installed_tables() -> Path:
    found = find_spec("aiconfigurator_core")
    if found is None or found.origin is None:
        raise MissingExtra("aiconfigurator-core", "tables", of="chipwise-fitting")
    return Path(found.origin).parent / "systems"
