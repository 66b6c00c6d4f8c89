"""Inputs of the network that corrects the formula for matrix products: shares of time, shape, and filling of tiles."""

from __future__ import annotations

import numpy as np

from chipwise.core.arrays import Float32Array
from chipwise.core.dtypes import Size
from chipwise.predict.kernels.gemm_physics import STEP_BYTES, Machine, Parts

_WAVE_TILES = ((64, 64), (128, 64), (128, 128), (256, 128))
_ROW_TILES, _COLUMN_TILES = (16, 64, 128, 256), (128, 256)
COUNT = 37


def features(m: Size, n: Size, k: Size, machine: Machine, parts: Parts) -> Float32Array:
    """Dimensionless features of matrix products, (COUNT, rows) in float32; the device's name is not a feature."""
    path, units = machine.path, machine.units
    m, n, k = (np.asarray(size, dtype=np.float32) for size in (m, n, k))
    inverse = (1 / parts.total_s).astype(np.float32)
    tiles, memory = parts.tiles_s.astype(np.float32), parts.memory_s.astype(np.float32)
    flops_s = 2 * m * n * k / np.float32(path.peak_flops_per_s)
    moved_s = parts.bytes.astype(np.float32) / np.float32(machine.bandwidth_bytes_per_s)
    x = np.empty((COUNT, m.size), dtype=np.float32)
    x[0] = np.log(tiles * inverse)
    x[1] = np.log(memory * inverse)
    x[2] = np.log(parts.launch_s.astype(np.float32) * inverse)
    x[3] = np.log((parts.quantise_s.astype(np.float32) + np.float32(1e-9)) * inverse)
    x[4] = np.log(m * n * np.float32(1 / units / 16384))
    x[5] = np.log(k * np.float32(max(path.weight_bytes, path.activation_bytes) / STEP_BYTES))
    x[6], x[7], x[8] = np.log2(m) - 6, np.log2(n) - 11, np.log2(k) - 11
    x[9] = np.log(flops_s / moved_s)
    x[10] = parts.resident
    row = 11
    for rows, columns in _WAVE_TILES:
        waves = np.ceil(m * np.float32(1 / rows)) * np.ceil(n * np.float32(1 / columns)) * np.float32(1 / units)
        whole = np.ceil(waves)
        x[row], x[row + 1] = waves / whole, 1 / whole
        row += 2
    for size in _ROW_TILES:
        part = m * np.float32(1 / size)
        x[row] = part / np.ceil(part)
        row += 1
    for size in _COLUMN_TILES:
        part = n * np.float32(1 / size)
        x[row] = part / np.ceil(part)
        row += 1
    for test in (m == 1, m <= 16, *(m % size == 0 for size in (2, 8, 16, 64))):
        x[row] = test
        row += 1
    for test in (*(n % size == 0 for size in (128, 256, 512, 1024)), k % 1024 == 0, n < 64):
        x[row] = test
        row += 1
    np.clip(x, -8.0, 8.0, out=x)
    return x
