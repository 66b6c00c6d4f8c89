"""Tables of measured runs that are fitted as sums of amounts: what ships of a fit, and predictions of a table.

Each kind of table has a module that reads its rows into ``TableRun``; the rest is the same for all.
"""

from __future__ import annotations

import csv
import functools
import gzip
import io
import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chipwise.core.files import read_bytes
from chipwise.core.statistics import conformal_half_width
from chipwise.errors import SpecError
from chipwise.predict.whole_runs.sums import Constants, Law, value_of
from chipwise_fitting.score import Row
from chipwise_fitting.sums_fit import Fit, Folds, folds

LEAST = 40  # misses that a half-width of a place's own rests on
LEAST_HALF_WIDTH = 0.005
Terms = Callable[[str | None], Mapping[str, float]]
"""The terms of a fold."""
SITUATIONS = {"known": "none", "seen": "model", "sibling": "device", "unseen": "vendor"}
"""What is known of a run, and the fits whose misses say how far off its prediction is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRun:
    """One measured row; ``law`` is None where nothing can be predicted, and ``problem`` says why."""

    row_id: str
    subset: str
    measured: float
    model: str = ""
    device: str = ""
    family: str = ""
    vendor: str = ""
    place: str = ""  # what its interval is measured on
    law: Law | None = None
    rival: float | None = None  # what the simple rival is a constant times of
    rival_of: tuple[str, ...] = ("device", "vendor")  # fields whose rows share the rival's constant, nearest first
    problem: str = ""


def number(text: str | None) -> float | None:
    """The number in a cell, where it holds one above zero."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def packed_rows(path: Path, required: Sequence[str]) -> list[dict[str, str]]:
    """The rows of a CSV table, packed by gzip or not.

    Raises:
        SpecError: It cannot be read, holds no rows, or lacks a column of ``required``.
    """
    packed = read_bytes(path)
    try:
        text = (gzip.decompress(packed) if path.suffix == ".gz" else packed).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise SpecError(f"cannot be read as a CSV table: {error}", file=str(path)) from None
    reader = csv.DictReader(io.StringIO(text, newline=""))
    missing = [name for name in required if name not in (reader.fieldnames or ())]
    if missing:
        raise SpecError(f"lacks the columns {', '.join(missing)}", file=str(path))
    rows = [{key: (value or "").strip() for key, value in row.items() if key} for row in reader]
    if not rows:
        raise SpecError("holds no rows", file=str(path))
    return rows


def table_in(folder: Path, name: str) -> Path:
    """The table ``name`` of a folder, packed or not; or the file itself."""
    if not folder.is_dir():
        return folder
    plain = folder / name.removesuffix(".gz")
    return plain if plain.is_file() and not (folder / name).is_file() else folder / name


def fit_runs(
    runs: Sequence[TableRun],
    fit: Fit,
    *,
    source: str,
    kinds: Sequence[str] = ("model", "device", "vendor"),
    splits: Mapping[str, int] | None = None,
) -> dict[str, object]:
    """What ships: terms of every fold, half-widths, and what the fit had seen.

    Args:
        runs: Rows that have a law.
        fit: Priors and noise.
        source: Where the rows come from.
        kinds: What is left out in turn.
        splits: How many parts a kind of many names is left out in, instead of one by one.

    Raises:
        SpecError: There is no row.
    """
    if not runs:
        raise SpecError("holds no row that can be predicted")
    splits = splits or {}
    groups = {kind: [_group(getattr(run, kind), splits.get(kind)) for run in runs] for kind in kinds}
    found = folds(fit, [run.law for run in runs if run.law], [run.measured for run in runs], groups)
    return {
        "folds": found.terms,
        "halfwidths": half_widths(runs, found),
        "runs": sorted({f"{run.place}|{run.model}" for run in runs}),
        "places": sorted({run.place for run in runs}),
        "devices": sorted({run.device for run in runs}),
        "vendors": sorted({run.vendor for run in runs}),
        "splits": dict(splits),
        "source": source,
    }


def _group(name: str, parts: int | None) -> str:
    """The name that is left out: its own, or that of the part it falls in."""
    return name if parts is None else f"part {zlib.crc32(name.encode()) % parts}"


def half_widths(runs: Sequence[TableRun], found: Folds) -> dict[str, float]:
    """Half-widths by situation and place: nine of ten misses of fits that knew as little stayed within.

    They do not shrink as less is known.
    """
    widths: dict[str, float] = {}
    for place in ("*", *sorted({run.place for run in runs})):
        chosen = [i for i, run in enumerate(runs) if place in ("*", run.place)]
        least = LEAST_HALF_WIDTH
        if len(chosen) < LEAST and place != "*":
            continue
        for situation, left_out in SITUATIONS.items():
            if left_out not in found.misses or (place != "*" and situation in ("sibling", "unseen")):
                continue  # a place that is left out says nothing of its own interval
            least = max(least, conformal_half_width(found.misses[left_out][chosen]))
            widths[f"{situation}|{place}"] = round(least, 4)
    return widths


def with_laws(runs: Sequence[TableRun], file: Path) -> list[TableRun]:
    """The rows of ``file`` that have a law, so can be predicted.

    Raises:
        SpecError: None has.
    """
    known = [run for run in runs if run.law]
    if not known:
        raise SpecError("holds no row that can be predicted", file=str(file))
    return known


def write_constants(found: Mapping[str, object], path: Path) -> None:
    """Writes what ships, packed where the file is named so."""
    text = json.dumps(found, sort_keys=True, separators=(",", ":")).replace("},", "},\n") + "\n"
    path.write_bytes(gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode())


def predicted_rows(runs: Sequence[TableRun], held: Constants, leave_out: str) -> list[Row]:
    """Every row with its prediction by a fit without what is left out, its interval, and the simple rival's answer."""
    rivals = rival_answers(runs, leave_out)
    terms = functools.cache(held.terms)
    return [_row(run, held, terms, leave_out, rival) for run, rival in zip(runs, rivals, strict=True)]


def fold_name(run: TableRun, leave_out: str, held: Constants) -> str | None:
    """The fold that has not seen what is left out of ``run``: where a family is one device, that device's."""
    if leave_out == "none":
        return None
    name = f"{leave_out}:{_group(getattr(run, leave_out), held.splits.get(leave_out))}"
    return name if leave_out != "family" or name in held.folds else f"device:{run.device}"


def _row(run: TableRun, held: Constants, terms: Terms, leave_out: str, rival: float | None) -> Row:
    if run.law is None:
        return Row(row_id=run.row_id, subset=run.subset, truth=run.measured, predicted=None, problem=run.problem)
    middle = float(value_of(run.law, terms(fold_name(run, leave_out, held))))
    left_out = "device" if leave_out == "family" else leave_out
    situation = held.situation(
        device=run.device, vendor=run.vendor, place=run.place, model=run.model, leave_out=left_out
    )
    return answered_row(run, middle, held.halfwidth(situation, run.place), rival)


def answered_row(run: TableRun, middle: float, log_halfwidth: float, rival: float | None) -> Row:
    """A row with its prediction, in the unit of what was measured, and the interval around it."""
    factor = math.exp(log_halfwidth)
    return Row(
        row_id=run.row_id,
        subset=run.subset,
        truth=run.measured,
        predicted=middle,
        low=middle / factor,
        high=middle * factor,
        rival=rival,
    )


def rival_answers(runs: Sequence[TableRun], leave_out: str) -> list[float | None]:
    """The simple rival: a row's amount at the sheet's rates times one constant of those rows that are most like it.

    The constant is the median of the table's own rows without what is left out, so it has seen more than our fit.
    """
    told = [run for run in runs if run.rival]
    ratio = np.log([run.measured / (run.rival or 1.0) for run in told])
    like: dict[tuple[object, ...], list[int]] = {}
    for i, run in enumerate(told):
        for depth in range(len(run.rival_of) + 1):
            like.setdefault(_key(run, depth), []).append(i)
    owner = np.array([getattr(run, leave_out, "") for run in told])
    known: dict[tuple[object, ...], float] = {}

    def constant(run: TableRun) -> float:
        own = getattr(run, leave_out, None)
        for depth in range(len(run.rival_of) + 1):
            key = (own, *_key(run, depth))
            if key not in known:
                found = np.array(like.get(_key(run, depth), []), int)
                left = found if own is None else found[owner[found] != own]
                known[key] = float(np.median(ratio[left])) if len(left) else math.nan
            if not math.isnan(known[key]):
                return known[key]
        return float(np.median(ratio))

    return [run.rival * math.exp(constant(run)) if run.rival else None for run in runs]


def _key(run: TableRun, depth: int) -> tuple[object, ...]:
    """What rows share the rival's constant, with the nearest ``depth`` fields left away."""
    return depth, *(getattr(run, field) for field in run.rival_of[depth:])
