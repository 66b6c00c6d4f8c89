"""Batches of equal requests in engines on chips of several makers: reads the table, fits, and predicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy import typing as npt

from chipwise.errors import ChipwiseError
from chipwise.hardware import datasheet
from chipwise.hardware.runtime import runtime_named
from chipwise.model.published.read import resolve
from chipwise.predict.served import stack_law
from chipwise.predict.served.formats import formats_of
from chipwise.predict.served.lowering import lower_pass
from chipwise.predict.served.plan import Plan
from chipwise.predict.served.setting import Setting, Step
from chipwise.predict.served.stack_law import (
    ONE_REQUEST,
    Where,
    Work,
    constants,
    pass_law,
    sequences_held,
)
from chipwise.predict.whole_runs.sums import Amount, Terms
from chipwise_fitting.score import Row
from chipwise_fitting.sums_fit import Fit, at
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
PROMPT_TOKENS = 2048  # new positions per pass: --max-num-batched-tokens in the runs
BATCHES = (1, 16, 32, 64, 128, 256)
LENGTHS = (128, 256, 512, 1024, 2048)
RATES = ("weights", "flops.decode", "flops.prompt", "cache", "link")
NEEDED = ("row_id", "device", "runtime", "model", "devices", "length", "batch", "latency_s")


def prior(name: str) -> tuple[float, float]:
    """Returns the starting value of a term and the standard deviation of its prior around that value."""
    kind, *levels = name.split("|")
    if kind == "cell":
        return 0.0, 0.1
    if not levels:
        return START[kind], 1.0
    return 0.0, 0.35 if kind in RATES else 0.6


def read(path: Path) -> list[TableRun]:
    """Reads every row of the table that was timed.

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


def between(value: float, sizes: Sequence[int]) -> list[tuple[int, float]]:
    """Returns the two sizes around ``value`` with weights, linear in log(``value``); outside ``sizes``, the nearest."""
    place = float(np.interp(math.log(max(value, 1e-9)), np.log(sizes), np.arange(len(sizes))))
    below = min(int(place), len(sizes) - 2)
    share = place - below
    return [(size, part) for size, part in ((sizes[below], 1 - share), (sizes[below + 1], share)) if part > 0]


def cell_terms(where: Where, batch: float, length: float) -> Terms:
    """Returns terms that correct an engine on a device, interpolated between sizes at ``batch`` and ``length``."""
    own = f"cell|{where.place}|tp{where.devices}"
    return (
        *((f"{own}|b{size}", share) for size, share in between(batch, BATCHES)),
        *((f"{own}|l{size}", share) for size, share in between(length, LENGTHS)),
    )


def _one_request_law(
    setting: Setting, where: Where, batch: npt.NDArray[np.int64], length: npt.NDArray[np.int64]
) -> list[Amount]:
    """Returns the summands of one request: its prompt in passes of ``batch`` positions, then token by token."""
    rows, ones = len(batch), np.ones(len(batch), np.int64)
    alone = replace(setting, plan=type(setting.plan)(), runtime=runtime_named("llama.cpp"))
    step = lower_pass(alone, Step(batch=ones, query_tokens=1, past_tokens=length + length // 2))
    prompt = lower_pass(alone, Step(batch=ones, query_tokens=batch, past_tokens=length // 2))
    return [
        *pass_law(Work.of(prompt, rows), where, prompt=True, sequences=0, times=length / batch),
        *pass_law(Work.of(step, rows), where, prompt=False, sequences=1, times=length),
    ]


def closed_batch_law(
    setting: Setting, where: Where, batch: npt.NDArray[np.int64], length: npt.NDArray[np.int64]
) -> list[Amount]:
    """Returns the summands of a batch's time, from the common start of its equal requests to the last end; one value
    per batch.

    Args:
        setting: Model and formats; its plan splits products over ``where.devices``.
        where: Engine and devices.
        batch: Requests of each batch.
        length: Tokens of a prompt, and also of its answer.

    Raises:
        Unsupported: The device lists no rate of 16-bit products, or a block is not lowered.
    """
    if where.stack in ONE_REQUEST:
        return _one_request_law(setting, where, batch, length)
    rows = len(batch)
    held = sequences_held(setting, where.device, batch, length)
    together = np.clip(PROMPT_TOKENS // length, 1, batch)
    zero = np.zeros(rows, np.int64)
    prompts = lower_pass(setting, Step(batch=together, query_tokens=length, past_tokens=zero))
    steps = lower_pass(setting, Step(batch=held, query_tokens=1, past_tokens=length + length // 2))
    return [
        *pass_law(Work.of(prompts, rows), where, prompt=True, sequences=0, times=batch / together),
        *pass_law(Work.of(steps, rows), where, prompt=False, sequences=held, times=length * batch / held),
    ]


def fit(tables: Path, out: Path, *, progress: Callable[[str], None]) -> str:
    """Fits the law's terms to the table and writes ``stacks.json``.

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
    """Predicts every row; maps the name of the predicted column to the rows."""
    return {"latency_s": predicted_rows(read(table_in(truth, FILE)), constants(), leave_out)}
