"""Inputs of the network that corrects the physical formula of attention: logarithms of sizes and relative times."""

from __future__ import annotations

import numpy as np

from chipwise.core.arrays import Float32Array, Float64Array
from chipwise.predict.kernels.attention_physics import ROWS, TILE, Call, Chip, Parts
from chipwise.predict.kernels.bounded import columns

LAUNCH_CLOCKS = 20_000.0  # clocks by which times are scaled, about one launch
SHAPE = (
    "compute", "longest", "dram", "cache", "resident", "spilling", "blocks", "wave", "steps", "batch", "kv heads",
    "group", "heads", "head size", "tile", "hidden keys", "window", "fp8", "fp8 cache", "short",
)  # fmt: skip


def shape(call: Call, chip: Chip, parts: Parts) -> Float32Array:
    """Features of attention calls, (rows, SHAPE): sizes and times relative to launches, waves and cache sizes."""
    launch_s = LAUNCH_CLOCKS / chip.clock_hz
    every = call.past + call.queries
    group = call.heads / call.kv_heads
    rows: list[Float64Array | float] = [
        _log(parts.compute_s / launch_s),
        _log(parts.longest_s / launch_s),
        _log(parts.dram_s / launch_s),
        _log(parts.cache_s / launch_s),
        _log(parts.resident),
        np.tanh(2 * _log(parts.resident)),
        _log(parts.blocks),
        _log(np.ceil(parts.blocks) / parts.blocks, 0.0, 4.0),
        _log(parts.steps),
        _log(call.batch),
        _log(call.kv_heads),
        _log(group),
        _log(call.heads),
        _log(call.head_size),
        _log(np.ceil(call.queries / TILE) * TILE / call.queries),
        _log(every / call.keys),
        np.where(call.span > 0, 1.0, 0.0),
        float(call.value_bytes == 1),
        float(call.cache_bytes == 1),
        _log(ROWS * np.ceil(group * call.queries / ROWS) / (group * call.queries)),
    ]
    return columns(rows, call.batch.size)


def _log(values: Float64Array, low: float = -14.0, high: float = 22.0) -> Float64Array:
    clipped: Float64Array = np.clip(np.log2(np.maximum(values, 1e-9)), low, high)
    return clipped
