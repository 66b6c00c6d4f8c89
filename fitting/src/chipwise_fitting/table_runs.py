"""Fits tables of measured runs as sums of amounts, writes the constants for chipwise, and predicts tables.

Each kind of table has a module that reads its rows into ``TableRun``; everything else is common to all kinds.
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

LEAST = 40  # minimum number of errors from which a place gets its own half-width
LEAST_HALF_WIDTH = 0.005
Terms = Callable[[str | None], Mapping[str, float]]
"""Function that returns the terms of a fold."""
SITUATIONS = {"known": "none", "seen": "model", "sibling": "device", "unseen": "vendor"}
"""Situations of predicted runs: each interval comes from the errors of fits that leave out this kind of group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRun:
    """One measured row; ``law`` is None if the row cannot be predicted, and ``problem`` says why."""

    row_id: str
    subset: str
    measured: float
    model: str = ""
    device: str = ""
    family: str = ""
    vendor: str = ""
    place: str = ""  # group of rows from which its interval is computed
    law: Law | None = None
    rival: float | None = None  # amount that the simple rival multiplies by a constant
    rival_of: tuple[str, ...] = ("device", "vendor")  # rows that agree in these fields share the rival's constant
    problem: str = ""


def number(text: str | None) -> float | None:
    """Returns the number in a cell; None unless it is above zero."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def packed_rows(path: Path, required: Sequence[str]) -> list[dict[str, str]]:
    """Reads the rows of a CSV table, compressed by gzip or not.

    Raises:
        SpecError: The table cannot be read, holds no rows, or lacks a column of ``required``.
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
    """Returns the path of the table ``name`` in a folder, compressed or not, or the file itself."""
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
    """Returns the constants for chipwise: terms of every fold, half-widths, and which runs and devices the fit
    contained.

    Args:
        runs: Rows that have a law.
        fit: Priors and noise.
        source: Where the rows come from.
        kinds: Kinds of groups; each group is left out in turn.
        splits: For kinds with many names: the number of parts into which the names are divided; a whole part is left
            out at once, instead of one name.

    Raises:
        SpecError: ``runs`` is empty.
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
    """Returns the name of the group that is left out: ``name`` itself, or the part to which it belongs."""
    return name if parts is None else f"part {zlib.crc32(name.encode()) % parts}"


def half_widths(runs: Sequence[TableRun], found: Folds) -> dict[str, float]:
    """Maps ``SITUATION|PLACE`` to a half-width that contains nine in ten errors of the fits in this situation.

    PLACE is the place of a row (``TableRun.place``), or ``*`` for all rows. If less is known in a situation, the
    half-width is wider or equal.
    """
    widths: dict[str, float] = {}
    for place in ("*", *sorted({run.place for run in runs})):
        chosen = [i for i, run in enumerate(runs) if place in ("*", run.place)]
        least = LEAST_HALF_WIDTH
        if len(chosen) < LEAST and place != "*":
            continue
        for situation, left_out in SITUATIONS.items():
            if left_out not in found.misses or (place != "*" and situation in ("sibling", "unseen")):
                continue  # fits without a place do not determine that place's own interval
            least = max(least, conformal_half_width(found.misses[left_out][chosen]))
            widths[f"{situation}|{place}"] = round(least, 4)
    return widths


def with_laws(runs: Sequence[TableRun], file: Path) -> list[TableRun]:
    """Returns the rows of ``file`` that have a law, so that they can be predicted.

    Raises:
        SpecError: No row has a law.
    """
    known = [run for run in runs if run.law]
    if not known:
        raise SpecError("holds no row that can be predicted", file=str(file))
    return known


def write_constants(found: Mapping[str, object], path: Path) -> None:
    """Writes the constants for chipwise, compressed if the file's name ends in ``.gz``."""
    text = json.dumps(found, sort_keys=True, separators=(",", ":")).replace("},", "},\n") + "\n"
    path.write_bytes(gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode())


def predicted_rows(runs: Sequence[TableRun], held: Constants, leave_out: str) -> list[Row]:
    """Predicts every row by a fit that leaves its group out, with an interval and the simple rival's prediction."""
    rivals = rival_answers(runs, leave_out)
    terms = functools.cache(held.terms)
    return [_row(run, held, terms, leave_out, rival) for run, rival in zip(runs, rivals, strict=True)]


def fold_name(run: TableRun, leave_out: str, held: Constants) -> str | None:
    """Names the fold that leaves out the group of ``run``; for a family of one device, the fold of that device."""
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
    """Returns a row with its prediction and interval, in the unit of the measured value."""
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
    """Predicts by the simple rival: a row's ideal value from the data sheet's rates, times a constant of the most
    similar rows.

    The constant is the median over the judged table's own rows except the left-out group, so it knows more than our
    fit.
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
    """Returns the key of rows that share the rival's constant, without the first ``depth`` fields of ``rival_of``."""
    return depth, *(getattr(run, field) for field in run.rival_of[depth:])
