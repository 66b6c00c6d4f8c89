"""Fits chipwise's constants for runs with one user, and predicts measured runs by fits that leave out the device."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.csvfile import write_rows
from chipwise.core.statistics import weighted_quantile
from chipwise.predict.kernels import local
from chipwise_fitting.edge_fit import PER_DEVICE, fits_without, fitted, left_out_with, misses, seconds
from chipwise_fitting.edge_rivals import by_efficiency
from chipwise_fitting.edge_runs import Run, read_runs, table_in
from chipwise_fitting.npu_runs import read_npu_runs
from chipwise_fitting.score import Row

SHARE = 0.9
LEAST, LEAST_DEVICES = 12, 3  # minimum numbers of runs and chips from which a half-width is computed


def kin_of(runs: Sequence[Run]) -> list[bool]:
    """Says for each run whether a fit can use runs on another chip of the same architecture."""
    chips: dict[str, set[str]] = {}
    for run in runs:
        if run.plausible:
            chips.setdefault(run.architecture, set()).add(run.chip)
    return [bool(chips.get(run.architecture, set()) - {run.chip}) for run in runs]


def half_widths(runs: Sequence[Run], found: Mapping[str, Float64Array]) -> dict[str, float]:
    """Maps ``PHASE|DISTANCE|CLASS`` to the half-width that contains the errors of nine in ten plausible runs.

    If less is known about a device, the half-width is wider or equal. A device counts for at most ``PER_DEVICE`` runs.

    Args:
        runs: Runs that have kernels.
        found: log(predicted / measured) of each run, from three kinds of fits: the fits for ``seen`` leave out the
            run's model on its device, those for ``sibling`` the run's device, those for ``unseen`` its vendor.
    """
    widths: dict[str, float] = {}
    kin = kin_of(runs)
    fair = [i for i, run in enumerate(runs) if run.plausible or run.cached]
    for phase in ("decode", "prefill"):
        for kind in ("*", *sorted({run.interval_class for run in runs})):
            least = 0.0
            alike = [i for i in fair if runs[i].phase == phase and kind in _kinds(runs[i])]
            for distance in local.DISTANCES:
                chosen = [i for i in alike if distance not in ("kin", "sibling") or kin[i] == (distance == "kin")]
                if len(chosen) < LEAST or len({runs[i].chip for i in chosen}) < LEAST_DEVICES:
                    chosen = alike
                if len(chosen) < LEAST and kind != "*":
                    continue
                values = np.abs(found["sibling" if distance == "kin" else distance][chosen])
                chips = [runs[i].chip for i in chosen]
                weights = np.array([min(1.0, PER_DEVICE / chips.count(chip)) for chip in chips])
                least = max(least, weighted_quantile(values, weights, min(1.0, SHARE * (1 + 1 / len(values)))))
                widths[f"{phase}|{distance}|{kind}"] = round(least, 4)
    return widths


def _kinds(run: Run) -> tuple[str, ...]:
    """Returns the classes to whose intervals a run contributes: its own and, unless its prompt was cached, ``*``."""
    return (run.interval_class,) if run.cached else ("*", run.interval_class)


def constants(runs: Sequence[Run], asked: Sequence[Run] | None = None) -> dict[str, Any]:
    """Returns the constants for chipwise to ship: terms, half-widths, and which devices and classes the fit contained.

    Args:
        runs: Runs that have kernels.
        asked: The same runs with only the facts that a call of ``chipwise.estimate`` states; intervals are computed
            from these.
    """
    asked = runs if asked is None else asked
    fair = [run for run in runs if run.plausible]
    terms = fitted(fair)
    left_out = {"seen": "model", "sibling": "device", "unseen": "vendor"}
    found = {name: misses(runs, each, terms, of=asked) for name, each in left_out.items()}
    return {
        "terms": {name: round(value, 4) for name, value in terms.items() if abs(value) >= 5e-5},
        "halfwidths": half_widths(asked, found),
        "source": "public measurements of one user's runs; docs/notes/validation.md names the tables",
        "devices": sorted({f"{run.chip}|{run.part}" for run in fair}),
        "architectures": sorted({run.architecture for run in fair}),
        "classes": sorted({run.engine for run in fair}),
        "stacks": sorted({f"{run.engine}|{run.stack}" for run in fair}),
    }


def fit(tables: Path, out: Path, *, progress: Callable[[str], None]) -> str:
    """Fits terms to ``edge.csv.gz`` in ``tables``, and to the folder's table of NPUs if any; writes ``local.json``."""
    npus = [run for run in read_npu_runs(tables) if run.kernels]
    runs, asked = ([run for run in read_runs(table_in(tables), told=told) if run.kernels] for told in (True, False))
    progress(f"{len(runs) + len(npus)} runs of {len({run.chip for run in [*runs, *npus] if run.device})} devices")
    found = constants([*runs, *npus], [*asked, *npus])
    (out / "local.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return f"local: {len(found['terms'])} terms"


def constants_without(tables: Path, chips: Sequence[str]) -> Iterator[tuple[str, local.Constants]]:
    """Yields, for each chip, the constants fitted without that chip's runs, with the shipped half-widths."""
    every = [*read_runs(table_in(tables)), *read_npu_runs(tables)]
    runs = [run for run in every if run.kernels]
    held = local.shipped()
    for chip, terms in fits_without(runs, chips, dict(held.terms)):
        fair = [run for run in runs if run.plausible and run.chip != chip]
        yield (
            chip,
            replace(
                held,
                terms=terms,
                devices=frozenset(f"{run.chip}|{run.part}" for run in fair),
                architectures=frozenset(run.architecture for run in fair),
                classes=frozenset(run.engine for run in fair),
                stacks=frozenset(f"{run.engine}|{run.stack}" for run in fair),
            ),
        )


@contextmanager
def answering_with(constants: local.Constants) -> Iterator[None]:
    """Makes predictions in the ``with`` block use ``constants``."""
    usual = local.shipped
    local.shipped = functools.cache(lambda: constants)
    local._shipped_factors.cache_clear()
    try:
        yield
    finally:
        local.shipped = usual
        local._shipped_factors.cache_clear()


COLUMN = {"decode": "decode_tokens_per_s", "prefill": "prefill_tokens_per_s"}
"""Column with the predictions, by phase; with the prefix ``low_`` or ``high_`` it holds an end of the interval."""


def edge(truth: Path, out: Path, leave_out: str) -> list[Row]:
    """Predicts every run by a fit that leaves its group out, and writes the rates to ``out``, one line for each row.

    Args:
        truth: ``edge.csv.gz``, or its folder; then the folder's table of NPUs is also used for fits and predicted.
        out: Where the predictions go.
        leave_out: ``none`` for the shipped terms, else ``device``, ``family`` or ``vendor``.
    """
    everything = [*read_runs(table_in(truth)), *read_npu_runs(truth)]
    runs = [run for run in everything if run.kernels]
    held = local.shipped()
    measured = np.log([run.measured_s for run in runs])
    if leave_out == "none":
        found = seconds(runs, dict(held.terms))
    else:
        found = misses(runs, leave_out, dict(held.terms)) + measured
    distances = ["kin" if near else "sibling" for near in kin_of(runs)]
    if leave_out != "device":
        distances = ["seen" if leave_out == "none" else "unseen"] * len(runs)
    groups = [left_out_with(run, "device" if leave_out == "none" else leave_out) for run in runs]
    answers = zip(np.exp(found), distances, np.exp(by_efficiency(runs, groups)), strict=True)
    answered = dict(zip(map(id, runs), answers, strict=True))
    rows = [_row(run, held, *answered[id(run)]) if id(run) in answered else _unanswered(run) for run in everything]
    lines: dict[str, dict[str, object]] = {}
    for run, row in zip(everything, rows, strict=True):
        if row.predicted is None or row.low is None or row.high is None:
            continue
        column = COLUMN[run.phase]
        rates: dict[str, object] = {column: row.predicted, f"low_{column}": row.low, f"high_{column}": row.high}
        rates[f"rival_{column}"] = row.rival
        lines.setdefault(run.row_id, {"row_id": run.row_id}).update(rates)
    columns = [f"{end}{column}" for column in COLUMN.values() for end in ("", "low_", "high_", "rival_")]
    write_rows(out, list(lines.values()), ("row_id", *columns))
    return rows


def _row(run: Run, held: local.Constants, predicted_s: float, distance: str, rival_s: float) -> Row:
    """Returns a run's rate in tokens per second: measured, predicted, and predicted by the simple rule."""
    width = held.class_halfwidth(run.phase, distance, run.interval_class)
    middle = run.tokens / float(predicted_s)
    return replace(
        _unanswered(run),
        predicted=middle,
        low=middle * math.exp(-width),
        high=middle * math.exp(width),
        rival=None if math.isnan(rival_s) else run.tokens / float(rival_s),
    )


def _unanswered(run: Run) -> Row:
    return Row(
        row_id=run.row_id,
        subset=f"{run.subset}, {run.phase}",
        truth=run.tokens / run.measured_s,
        predicted=None,
        problem=run.problem,
    )
