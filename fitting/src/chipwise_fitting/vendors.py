"""Batches of equal requests in engines on chips of several makers: reading the table, fitting, predicting."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from chipwise.errors import ChipwiseError
from chipwise.hardware import datasheet
from chipwise.hardware.runtime import runtime_named
from chipwise.model.published.read import resolve
from chipwise.predict.served import stack_law
from chipwise.predict.served.formats import formats_of
from chipwise.predict.served.plan import Plan
from chipwise.predict.served.setting import Setting
from chipwise.predict.served.stack_law import Where, cell_terms, closed_batch_law, constants
from chipwise.predict.whole_runs.sums import at
from chipwise_fitting.score import Row
from chipwise_fitting.sums_fit import Fit
from chipwise_fitting.table_runs import (
    TableRun,
    fit_runs,
    number,
    packed_rows,
    predicted_rows,
    table_in,
    with_laws,
    write_constants,
)

FILE = "vendors.csv"
SOURCE = "argonne-lcf/LLM-Inference-Bench 4211f5d (BSD-3-Clause), engines of 2024"
START = {
    "weights": 0.2,
    "flops.decode": 1.0,
    "flops.prompt": 0.7,
    "cache": 0.5,
    "step": math.log(2e-3),
    "kernel": math.log(3e-6),
    "sequence": math.log(2e-5),
    "collective": math.log(1e-5),
    "link": 0.3,
}
RATES = ("weights", "flops.decode", "flops.prompt", "cache", "link")
NEEDED = ("row_id", "device", "runtime", "model", "devices", "length", "batch", "latency_s")


def prior(name: str) -> tuple[float, float]:
    """Where a term starts, and how far it is expected to be from there."""
    kind, *levels = name.split("|")
    if kind == "cell":
        return 0.0, 0.1
    if not levels:
        return START[kind], 1.0
    return 0.0, 0.35 if kind in RATES else 0.6


def read(path: Path) -> list[TableRun]:
    """Every row of the table that was timed.

    Raises:
        SpecError: The table cannot be read, or lacks a column.
    """
    groups: dict[tuple[str, ...], list[tuple[int, dict[str, str]]]] = {}
    rows = [row for row in packed_rows(path, NEEDED) if number(row["latency_s"])]
    found: dict[int, TableRun] = {}
    for i, row in enumerate(rows):
        groups.setdefault((row["device"], row["runtime"], row["devices"], row["model"]), []).append((i, row))
    for (device, stack, devices, model), members in groups.items():
        try:
            runs = _runs(device, stack, int(number(devices) or 1), model, [row for _, row in members])
        except ChipwiseError as error:
            runs = [_unanswered(row, str(error)) for _, row in members]
        found.update(zip((i for i, _ in members), runs, strict=True))
    return [found[i] for i in range(len(rows))]


def _unanswered(row: dict[str, str], problem: str) -> TableRun:
    return TableRun(
        row_id=row["row_id"],
        subset=f"{row['device']} {row['runtime']}",
        measured=float(row["latency_s"]),
        problem=problem,
    )


def _runs(device: str, stack: str, devices: int, model: str, rows: list[dict[str, str]]) -> list[TableRun]:
    sheet, arch = datasheet.load(device), resolve(model)
    where = Where(stack=stack, device=sheet, devices=devices)
    batch, length = (np.array([max(1, round(number(row[name]) or 1)) for row in rows]) for name in ("batch", "length"))
    mixture = any(hasattr(layer.ffn, "experts") for layer in arch.layers)
    setting = Setting(
        arch=arch,
        plan=Plan(tp=devices),
        formats=formats_of(None, None, wide="fp16", mixture=mixture),
        runtime=runtime_named("vllm"),
    )
    law = closed_batch_law(setting, where, batch, length)
    simple = {"weights", "flops.prompt", "flops.decode", "cache"}
    least = sum(a.value for a in law if a.terms[0][0] in simple)
    return [
        TableRun(
            row_id=row["row_id"],
            subset=f"{device} {stack}",
            measured=float(row["latency_s"]),
            model=arch.name,
            device=sheet.name,
            family=sheet.family,
            vendor=sheet.vendor,
            place=where.place,
            law=at(law, i, cell_terms(where, float(batch[i]), float(length[i]))),
            rival=float(np.asarray(least)[i]),
            rival_of=("place", "device", "vendor"),
        )
        for i, row in enumerate(rows)
    ]


def fit(tables: Path, out: Path, *, progress: Callable[[str], None]) -> str:
    """Fits to the table and writes ``stacks.json``.

    Raises:
        SpecError: No row can be predicted.
    """
    file = table_in(tables, FILE)
    runs = with_laws(read(file), file)
    progress(f"{len(runs)} runs of {len({run.device for run in runs})} devices")
    found = fit_runs(runs, Fit(prior=prior), source=SOURCE)
    write_constants(found, out / stack_law.DATA.name)
    stack_law.constants.cache_clear()
    return f"vendors: {len(runs)} runs, {len(found['folds']['none'])} terms"  # type: ignore[index]


def rows(truth: Path, leave_out: str) -> dict[str, list[Row]]:
    """Every row with its prediction, by the column of the predictions."""
    return {"latency_s": predicted_rows(read(table_in(truth, FILE)), constants(), leave_out)}
