"""Fits ``kernels/attention.py`` to the attention tables of aiconfigurator-core.

For each device and stack (the serving software, such as vLLM), only the latest version is used. If several kernels were
timed for one call, the kernel that is most frequent in the stack's tables is used. The fit does not use held-out calls
and head configurations (``data/heldout-attention.csv.gz``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.errors import MissingExtra
from chipwise.hardware import datasheet
from chipwise.predict.kernels import attention_physics as physics
from chipwise.predict.kernels.attention import SCHEDULES
from chipwise.predict.kernels.attention_features import shape
from chipwise.predict.kernels.attention_fit import LANES, lane
from chipwise.predict.kernels.bounded import STACKS
from chipwise_fitting.attention_model import Cell, Recipe, fit_cells
from chipwise_fitting.report import Progress, Report

HELD_OUT = Path(__file__).parent / "data" / "heldout-attention.csv.gz"
FORMATS = {"bfloat16": "bf16", "fp8": "fp8"}
PLAIN = {
    "vllm": 1_000_000,
    "sglang": 8_000,
    "trtllm": 8_000,
}  # maximum number of rows of a device and schedule: 16-bit, no window
OTHER = {"vllm": 3_000, "sglang": 2_000, "trtllm": 2_000}  # the same for any other formats, or with windows
RECIPE = Recipe(
    kind="attention",
    tables="data/*/attention/*/*/{context,generation}_attention_perf.parquet",
    lanes=LANES,
    stacks=STACKS,
    judge="vllm",
    fold_rows={"vllm": 5_000, "sglang": 1_500, "trtllm": 1_500},
)


def fit(tables: Path, out: Path, *, progress: Progress = print, seed: int = 0) -> Report:
    """Reads ``tables`` (the package's ``systems`` folder), writes attention.json and attention.npz into ``out``."""
    cells = list(read(tables, random=np.random.default_rng(seed)))
    return fit_cells(RECIPE, cells, out, progress=progress, seed=seed)


def read(tables: Path, *, random: np.random.Generator) -> Iterator[Cell]:
    """Yields the tables' rows as cells, without held-out rows; rows with windows or narrow formats are sampled."""
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtra("pandas", "tables", of="chipwise-fitting") from error

    held_out = pd.read_csv(HELD_OUT)
    for folder in sorted((tables / "data").glob("*/attention/*")):
        version = max((path for path in folder.iterdir() if path.is_dir()), key=lambda path: version_key(path.name))
        paths = {phase: version / f"{phase}_attention_perf.parquet" for phase in ("context", "generation")}
        frames = [_frame(pd.read_parquet(path), phase) for phase, path in paths.items() if path.is_file()]
        rows = _without(pd.concat(frames), held_out)
        system, stack = folder.parts[-3], folder.name
        if stack in STACKS:
            yield from _cells(rows, datasheet.load(system), stack, random)


def _frame(rows: Any, phase: str) -> Any:
    past = rows["step"] if phase == "generation" else 0 * rows["step"]
    names = {
        "batch_size": "batch", "num_heads": "heads", "num_key_value_heads": "kv_heads", "head_dim": "head_size",
        "attn_dtype": "activations", "kv_cache_dtype": "cache", "kernel_source": "kernel",
    }  # fmt: skip
    rows = rows.rename(columns=names)
    window = rows["window_size"].fillna(0) if "window_size" in rows else 0
    rows = rows.assign(phase=phase, past=past, queries=1 if phase == "generation" else rows["isl"], window=window)
    columns = [*names.values(), "phase", "past", "queries", "window", "latency"]
    return rows.loc[rows["latency"] > 0, columns]


def _without(rows: Any, held_out: Any) -> Any:
    """Returns ``rows`` without held-out calls and head configurations, with one row for each remaining call."""
    heads = ["heads", "kv_heads", "head_size"]
    wholly = held_out.loc[held_out["phase"] == "any", heads]
    calls = held_out.loc[held_out["phase"] != "any"].astype({"batch": int, "tokens": int})
    rows = rows.assign(tokens=rows["queries"] + rows["past"])
    rows = rows.merge(wholly, how="left", indicator="_whole")
    rows = rows.merge(calls, how="left", indicator="_call")
    rows = rows[(rows["_whole"] == "left_only") & (rows["_call"] == "left_only")]
    usual = rows["kernel"].map(rows["kernel"].value_counts())
    key = [*heads, "phase", "batch", "queries", "past", "window", "activations", "cache"]
    rows = rows.assign(usual=usual).sort_values("usual", ascending=False)
    return (
        rows[rows["usual"] == rows.groupby(key)["usual"].transform("max")]
        .groupby(key, as_index=False)["latency"]
        .median()
    )


def _cells(rows: Any, device: datasheet.DeviceProfile, stack: str, random: np.random.Generator) -> Iterator[Cell]:
    for (activations, cache, plain), part in rows.assign(plain=rows["window"] == 0).groupby(
        ["activations", "cache", "plain"]
    ):
        plain = plain and activations == cache == "bfloat16"
        for schedule, chosen in (("decode", part["queries"] == 1), ("context", part["queries"] > 1)):
            most = PLAIN[stack] if plain else OTHER[stack]
            some = part[chosen]
            some = some.iloc[random.permutation(len(some))[:most]]
            if len(some):
                yield _cell(some, device, stack, schedule, FORMATS[activations], FORMATS[cache], plain)


def _cell(
    rows: Any, device: datasheet.DeviceProfile, stack: str, schedule: str, activations: str, cache: str, plain: bool
) -> Cell:
    size = {
        name: rows[name].to_numpy(np.float64) for name in ("batch", "queries", "past", "heads", "kv_heads", "head_size")
    }
    chip = physics.Chip.of(device, activations)
    call = physics.Call(
        **size,
        span=rows["window"].to_numpy(np.float64),
        stored=np.full(len(rows), 2.0),
        causal=True,
        value_bytes=1.0 if activations == "fp8" else 2.0,
        cache_bytes=1.0 if cache == "fp8" else 2.0,
    )
    parts = SCHEDULES[schedule](call, chip)
    return Cell(
        device=device,
        stack=stack,
        lane=lane(stack, device, cache),
        schedule=schedule,
        plain=plain,
        parts=parts,
        inputs=shape(call, chip, parts),
        measured_s=rows["latency"].to_numpy(np.float64) / 1e3,
        configuration=(call.heads * 1_000_003 + call.kv_heads * 1_009 + call.head_size).astype(np.int64),
    )


def version_key(name: str) -> list[int]:
    """Returns the numbers in ``name``, a key by which versions are sorted."""
    return [int(part) for part in "".join(c if c.isdigit() else " " for c in name).split()]
