"""Predicts measured runs of one user, each by a fit without its device, and fits what ships for such runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.csvfile import write_rows
from chipwise.predict.kernels import local
from chipwise_fitting.edge_fit import fitted, misses, seconds
from chipwise_fitting.edge_runs import Run, read_runs
from chipwise_fitting.score import Row

SHARE = 0.9
LEAST = 12  # misses that a half-width of a class's own rests on


def half_widths(runs: Sequence[Run], found: dict[str, Float64Array]) -> dict[str, float]:
    """Half-widths by ``PHASE|SITUATION|CLASS``: nine of ten plausible runs stayed within.

    Never less for a device of which less is known.
    """
    widths: dict[str, float] = {}
    for phase in ("decode", "prefill"):
        for kind in ("*", *sorted({run.interval_class for run in runs})):
            least = 0.0
            for situation in ("seen", "sibling", "unseen"):
                fair = [i for i, run in enumerate(runs) if run.phase == phase and run.plausible]
                chosen = [i for i in fair if kind in ("*", runs[i].interval_class)]
                if len(chosen) < LEAST and kind != "*":
                    continue
                values = np.abs(found[situation][chosen])
                level = min(1.0, SHARE * (1 + 1 / len(values)))
                least = max(least, float(np.quantile(values, level)))
                widths[f"{phase}|{situation}|{kind}"] = round(least, 4)
    return widths


def constants(runs: Sequence[Run]) -> dict[str, Any]:
    """What ships: terms, half-widths, and what the fit had seen."""
    terms = fitted([run for run in runs if run.plausible])
    measured = np.log([run.measured_s for run in runs])
    found = {
        "seen": seconds(runs, terms) - measured,
        "sibling": misses(runs, "device", terms),
        "unseen": misses(runs, "vendor", terms),
    }
    return {
        "terms": {name: round(value, 4) for name, value in terms.items() if abs(value) >= 5e-5},
        "halfwidths": half_widths(runs, found),
        "source": "public measurements of one user's runs; docs/notes/validation.md names the tables",
        "devices": sorted({f"{run.chip}|{run.part}" for run in runs if run.device}),
        "classes": sorted({run.engine for run in runs}),
    }


def fit(tables: Path, out: Path, *, progress: Callable[[str], None]) -> str:
    """Fits to ``edge.csv.gz`` of ``tables`` and writes ``local.json``."""
    runs = [run for run in read_runs(table_in(tables)) if run.kernels]
    progress(f"{len(runs)} runs of {len({run.chip for run in runs if run.device})} devices")
    found = constants(runs)
    (out / "local.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return f"local: {len(found['terms'])} terms"


def table_in(folder: Path) -> Path:
    """The table of a folder, or the file itself."""
    return folder / "edge.csv.gz" if folder.is_dir() else folder


COLUMN = {"decode": "decode_tokens_per_s", "prefill": "prefill_tokens_per_s"}
"""The column of the predictions for each phase; ``low_`` and ``high_`` before it name the ends of its interval."""


def edge(truth: Path, out: Path, leave_out: str) -> list[Row]:
    """Predicts every run by a fit without what is left out, and writes the rates to ``out``, one line a row.

    Args:
        truth: ``edge.csv.gz``, or its folder.
        out: Where the predictions go.
        leave_out: ``none`` for the terms that ship, else ``device``, ``family`` or ``vendor``.
    """
    everything = read_runs(table_in(truth))
    runs = [run for run in everything if run.kernels]
    held = local.shipped()
    measured = np.log([run.measured_s for run in runs])
    if leave_out == "none":
        found = seconds(runs, dict(held.terms))
    else:
        found = misses(runs, leave_out, dict(held.terms)) + measured
    situation = {"none": "seen", "device": "sibling"}.get(leave_out, "unseen")
    predicted_s = dict(zip(map(id, runs), np.exp(found), strict=True))
    rows = [_row(run, predicted_s.get(id(run)), held, situation) for run in everything]
    lines: dict[str, dict[str, object]] = {}
    for run, row in zip(everything, rows, strict=True):
        if row.predicted is None or row.low is None or row.high is None:
            continue
        column = COLUMN[run.phase]
        rates = {column: row.predicted, f"low_{column}": row.low, f"high_{column}": row.high}
        lines.setdefault(run.row_id, {"row_id": run.row_id}).update(rates)
    columns = [f"{end}{column}" for column in COLUMN.values() for end in ("", "low_", "high_")]
    write_rows(out, list(lines.values()), ("row_id", *columns))
    return rows


def _row(run: Run, predicted_s: float | None, held: local.Constants, situation: str) -> Row:
    """A run's rate in tokens a second, measured and predicted."""
    rate = run.tokens / run.measured_s
    subset = f"{run.subset}, {run.phase}"
    if predicted_s is None:
        return Row(row_id=run.row_id, subset=subset, truth=rate, predicted=None, problem=run.problem)
    width = held.class_halfwidth(run.phase, situation, run.interval_class)
    middle = run.tokens / float(predicted_s)
    return Row(
        row_id=run.row_id,
        subset=subset,
        truth=rate,
        predicted=middle,
        low=middle * math.exp(-width),
        high=middle * math.exp(width),
    )
