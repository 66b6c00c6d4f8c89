"""Parts of models on Qualcomm chips: reads AI Hub's table, fits, and predicts.

The law is a product, so its logarithm is linear in the terms: fits are ridge regressions with reweighted errors.
"""

from __future__ import annotations

import collections
import functools
import gzip
import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.linalg import LinearOperator, cg

from chipwise.core.arrays import Float64Array
from chipwise.core.statistics import conformal_half_width
from chipwise.errors import SpecError
from chipwise.predict.graphs.npu_chips import CHIPS, chip_named
from chipwise.predict.whole_runs import phone_models, phone_parts
from chipwise.predict.whole_runs.phone_parts import PartRun, constants, part_law
from chipwise.predict.whole_runs.sums import Constants, value_of
from chipwise_fitting.score import Row
from chipwise_fitting.sums_fit import Design
from chipwise_fitting.table_runs import (
    LEAST,
    TableRun,
    answered_row,
    number,
    packed_rows,
    rival_answers,
    table_in,
    write_constants,
)

FILE = "phones.csv.gz"
SOURCE = "PyPI qai-hub-models 0.65.0, models/*/perf.yaml (BSD-3-Clause)"
NEEDED = ("row_id", "model", "component", "precision", "device", "runtime", "ms")
PARTS = 10  # number of parts in which models are left out
NOISE = 0.04
PER_PART = 100.0  # maximum weight of a part, in rows
SAME = 0.003  # a fold's term is not stored if it differs by less than this from the fit to all rows
TINY = 0.003  # smaller terms are zero
CHIP_NAMES = frozenset(chip.name for chip in CHIPS.values())
DEVIATION = {"part": 1.0, "kind": 0.5, "runtime": 0.25, "chip": 0.3}
SIZES = {"counted": 1.0, "plain": 1.0, "layers": 1.0, "counted size": 0.1, "plain size": 0.1, "layers size": 0.3}
Terms = Callable[[str | None], Mapping[str, float]]
"""Function that returns the terms of a fold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A row of the table: its run, and the facts that the fits use."""

    run: PartRun
    told: TableRun


def read(path: Path) -> list[Part]:
    """Reads every row that was timed.

    Raises:
        SpecError: The table cannot be read, or lacks a column.
    """
    return [_part(row) for row in packed_rows(path, NEEDED) if number(row["ms"])]


def _part(row: dict[str, str]) -> Part:
    run = PartRun(
        model=row["model"],
        component=row["component"],
        precision=row["precision"],
        device=row["device"],
        runtime=row["runtime"],
        unit=row.get("unit") or "NPU",
        layers=number(row.get("layers")),
    )
    work = run.work
    told = TableRun(
        row_id=row["row_id"],
        subset=f"{'transformer' if run.transformer else 'other'} {run.unit}",
        measured=float(row["ms"]) / 1e3,
        model=row["model"],
        device=row["device"],
        family=chip_named(row["device"]).name,
        vendor="Qualcomm",
        place=run.place,
        law=part_law(run),
        rival=work.gmacs if work else run.layers or phone_parts.USUAL_LAYERS,
        rival_of=("place", "device", "subset"),
    )
    return Part(run=run, told=told)


def deviation(name: str) -> float:
    """Returns the standard deviation of a term's prior around zero."""
    kind, *levels = name.split("|")
    if kind in SIZES:
        return SIZES[kind] if not levels else 0.05
    if kind == "part" and len(levels) > 1:
        return 0.7 if len(levels) == 2 else 0.3
    if kind == "chip" and levels[0].startswith(("npu", "phone", "laptop", "car", "board", "small")):
        return 0.5
    if kind == "chip" and levels[0] not in CHIP_NAMES:
        return 0.05  # how a device differs from others with the same chip
    return DEVIATION[kind]


def ridge(
    matrix: csr_array, target: Float64Array, weight: Float64Array, spread: Float64Array, start: Float64Array
) -> Float64Array:
    """Fits terms by robust weighted least squares: of errors / ``NOISE``, and of the terms' deviations / ``spread``."""
    theta, transposed = start, matrix.T.tocsr()
    squared = matrix.multiply(matrix).tocsr()
    for _ in range(6):
        error = matrix @ theta - target
        each = weight / NOISE**2 / np.sqrt(1 + (error / NOISE) ** 2)
        diagonal = squared.T @ each + 1 / spread**2

        def normal(x: Float64Array, each: Float64Array = each) -> Float64Array:
            return np.asarray(transposed @ (each * (matrix @ x)) + x / spread**2)

        size = len(theta)
        operator = LinearOperator((size, size), matvec=normal)
        before = LinearOperator((size, size), matvec=lambda x, diagonal=diagonal: x / diagonal)
        theta, _ = cg(operator, transposed @ (each * target), x0=theta, rtol=1e-4, maxiter=200, M=before)
    return theta


def fit(tables: Path, out: Path, *, progress: Callable[[str], None]) -> str:
    """Fits the law's terms to the table and writes ``phones.json.gz`` and ``phone_models.json.gz``.

    Raises:
        SpecError: The table holds no row.
    """
    parts = read(table_in(tables, FILE))
    if not parts:
        raise SpecError("holds no row that was timed", file=str(table_in(tables, FILE)))
    progress(f"{len(parts)} runs of {len({part.told.model for part in parts})} models")
    held = Design.of([part.told.law or () for part in parts], [part.told.measured for part in parts])
    target = held.measured - np.log(held.value)
    spread = np.array([deviation(name) for name in held.names])
    owners = collections.Counter(f"{part.run.architecture}|{part.run.component}" for part in parts)
    weight = np.array([min(1.0, PER_PART / owners[f"{part.run.architecture}|{part.run.component}"]) for part in parts])
    everything = ridge(held.terms, target, weight, spread, np.zeros(len(held.names)))
    folds = {
        "none": {name: round(float(v), 3) for name, v in zip(held.names, everything, strict=True) if abs(v) >= TINY}
    }
    misses = {"known": held.terms @ everything - target}
    groups = {
        "model": ("seen", [split_of(part.told.model) for part in parts]),
        "device": ("sibling", [part.told.device for part in parts]),
        "family": ("chip", [part.told.family for part in parts]),
    }
    for kind, (situation, names) in groups.items():
        each, missed = np.array(names), np.empty(len(parts))
        for name in sorted(set(names)):
            out_of = each == name
            theta = ridge(held.terms, target, weight * ~out_of, spread, everything)
            missed[out_of] = (held.terms @ theta - target)[out_of]
            far = np.abs(theta - everything) >= SAME
            folds[f"{kind}:{name}"] = {
                term: round(float(v), 3) for term, v, kept in zip(held.names, theta, far, strict=True) if kept
            }
        misses[situation] = missed
    write_constants(
        {
            "folds": folds,
            "halfwidths": widths(parts, misses),
            "runs": sorted({part.told.model for part in parts}),
            "places": sorted({part.told.place for part in parts}),
            "devices": sorted({part.told.device for part in parts}),
            "vendors": sorted({part.told.family for part in parts}),
            "splits": {"model": PARTS},
            "source": SOURCE,
        },
        out / phone_parts.DATA.name,
    )
    write_catalogue(parts, out)
    constants.cache_clear()
    return f"phones: {len(parts)} runs, {len(folds['none'])} terms"


def write_catalogue(parts: Sequence[Part], out: Path) -> None:
    """Writes each model's parts, and each part's number of operators when compiled for a unit in a precision."""
    layers: dict[str, dict[str, dict[str, list[float]]]] = {}
    for part in parts:
        run = part.run
        if run.layers:
            own = layers.setdefault(run.model, {}).setdefault(run.component, {})
            own.setdefault(f"{run.unit}|{run.precision}", []).append(run.layers)
    found = {
        model: {
            component: {place: round(float(np.median(counts))) for place, counts in places.items()}
            for component, places in components.items()
        }
        for model, components in layers.items()
    }
    text = json.dumps({"source": SOURCE, "models": found}, sort_keys=True, separators=(",", ":"))
    (out / phone_models.DATA.name).write_bytes(gzip.compress(text.encode(), mtime=0))


def split_of(model: str) -> str:
    """Names the group of models (a tenth of all) with which a model is left out."""
    return f"part {zlib.crc32(model.encode()) % PARTS}"


def widths(parts: Sequence[Part], misses: dict[str, npt.NDArray[np.float64]]) -> dict[str, float]:
    """Maps ``SITUATION|PLACE`` to a half-width. PLACE is the place of a run, or ``*`` for all runs.

    Fits without the run's model give ``seen``, without its device ``sibling``, without its chip ``chip``. Fits to all
    runs give ``known``; ``unseen`` combines ``seen`` and ``chip``.
    """
    found: dict[str, float] = {}
    for place in ("*", *sorted({part.told.place for part in parts})):
        chosen = [i for i, part in enumerate(parts) if place in ("*", part.told.place)]
        if len(chosen) < LEAST and place != "*":
            continue
        for situation, missed in misses.items():
            found[f"{situation}|{place}"] = round(conformal_half_width(missed[chosen]), 4)
        found[f"unseen|{place}"] = round(math.hypot(found[f"seen|{place}"], found[f"chip|{place}"]), 4)
    return found


def rows(truth: Path, leave_out: str) -> dict[str, list[Row]]:
    """Predicts every row. All chips are from one vendor, so ``vendor`` leaves out only the row's chip."""
    parts, held = read(table_in(truth, FILE)), constants()
    kind = "family" if leave_out == "vendor" else leave_out
    rivals = rival_answers([part.told for part in parts], kind)
    terms = functools.cache(held.terms)
    return {"latency_s": [_row(part, held, terms, kind, rival) for part, rival in zip(parts, rivals, strict=True)]}


def _row(part: Part, held: Constants, terms: Terms, kind: str, rival: float | None) -> Row:
    told = part.told
    own = split_of(told.model) if kind == "model" else getattr(told, kind, "")
    fold = None if kind == "none" else f"{kind}:{own}"
    middle = float(value_of(told.law or (), terms(fold)))
    model = told.model in held.runs and kind != "model"
    device = told.device in held.devices and kind not in ("device", "family")
    chip = told.family in held.vendors and kind != "family"
    situation = ("known" if device else "sibling" if chip else "chip") if model else "seen" if device else "unseen"
    return answered_row(told, middle, held.halfwidth(situation, told.place), rival)
