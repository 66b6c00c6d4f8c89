"""Fits ``kernels/latent.py`` to the latent-attention tables of aiconfigurator-core.

Only the kernels are fitted, as SGLang and TensorRT-LLM run them, for DeepSeek V3's widths. Rows that the tables call
modules, which include the matrix products around the kernel, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.errors import MissingExtra
from chipwise.hardware import datasheet
from chipwise.model.ops.attention import LatentAttentionOp
from chipwise.predict.kernels import attention_physics as physics
from chipwise.predict.kernels.attention import SCHEDULES
from chipwise.predict.kernels.attention_features import shape
from chipwise.predict.kernels.latent import LANES, call_of, lane
from chipwise_fitting.attention import FORMATS, version_key
from chipwise_fitting.attention_model import Cell, Recipe, fit_cells
from chipwise_fitting.report import Progress, Report

WIDTHS = {
    "kv_rank": 512,
    "rope_size": 64,
    "nope_size": 128,
    "value_size": 128,
}  # those of DeepSeek V2, V3 and R1, Kimi K2
RECIPE = Recipe(
    kind="latent",
    tables="data/*/mla/*/*/{context,generation}_mla_perf.parquet",
    lanes=LANES,
    stacks=("sglang", "trtllm"),
    judge="trtllm",
    fold_rows={"sglang": 1_500, "trtllm": 1_500},
    wide=(48, 48),
    narrow=(32, 32),
    wide_epochs=30,
    narrow_epochs=10,
)


def fit(tables: Path, out: Path, *, progress: Progress = print, seed: int = 0) -> Report:
    """Reads ``tables`` (the package's ``systems`` folder), writes latent.json and latent.npz into ``out``."""
    return fit_cells(RECIPE, list(read(tables)), out, progress=progress, seed=seed)


def read(tables: Path) -> Iterator[Cell]:
    """Yields the tables' rows as cells, from each device and stack's latest version that timed the kernels alone."""
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtra("pandas", "tables", of="chipwise-fitting") from error
    for phase, schedule in (("generation", "decode"), ("context", "context")):
        for folder in sorted((tables / "data").glob("*/mla/*")):
            paths = sorted(folder.glob(f"*/{phase}_mla_perf.parquet"), key=lambda path: version_key(path.parent.name))
            if not paths:
                continue
            rows = pd.read_parquet(paths[-1])
            key = ["kv_cache_dtype", "num_heads", "batch_size", "isl", "step"]
            rows = rows[rows["latency"] > 0].groupby(key, as_index=False)["latency"].median()
            for cache, part in rows.groupby("kv_cache_dtype"):
                yield _cell(part, datasheet.load(folder.parts[-3]), folder.name, schedule, FORMATS[cache])


def _cell(rows: Any, device: datasheet.DeviceProfile, stack: str, schedule: str, cache: str) -> Cell:
    decode = schedule == "decode"
    heads = rows["num_heads"].to_numpy(np.int64)
    op = LatentAttentionOp(
        batch=rows["batch_size"].to_numpy(np.int64),
        query_tokens=np.ones_like(heads) if decode else rows["isl"].to_numpy(np.int64),
        past_tokens=rows["step"].to_numpy(np.int64) if decode else np.zeros_like(heads),
        heads=heads,
        absorbed=decode,
        activations="bf16",
        cache=cache,
        **WIDTHS,
    )
    chip, call = physics.Chip.of(device, op.activations), call_of(op)
    parts = SCHEDULES[schedule](call, chip)
    return Cell(
        device=device,
        stack=stack,
        lane=lane(stack, device),
        schedule=schedule,
        plain=cache == "bf16",
        parts=parts,
        inputs=shape(call, chip, parts),
        measured_s=rows["latency"].to_numpy(np.float64) / 1e3,
        configuration=heads,
    )
