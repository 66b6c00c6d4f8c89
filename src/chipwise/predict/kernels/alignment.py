"""Misaligned rows: how much longer matrix products take if rows cannot be loaded 16 bytes at a time.

The size of one load is the largest power of two, up to 16 bytes, that divides the row size. Each halving below 16 bytes
doubles the number of loads of a tile. Small loads also rule out features that kernels rely on: asynchronous copies need
at least 4 bytes, and the tensor memory accelerator (Hopper and later) needs 16 bytes. The model of matrix products was
fitted to tables without misaligned rows, so this module uses published timings (``data/alignment.yaml``). With each
halving, the time of the tiles grows by the same factor. The number of bytes moved stays the same, so memory-bound
matrix products hardly change.

References:
    NVIDIA, Matrix Multiplication Background User's Guide, section 2.2.
    Anthony et al. 2024, The Case for Co-Designing Model Architectures with Hardware, arXiv:2401.14489, section III.
"""

from __future__ import annotations

import functools
import statistics
from dataclasses import dataclass
from math import log, log2
from pathlib import Path

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.dtypes import Size
from chipwise.core.files import build, read_yaml
from chipwise.errors import SpecError
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.predict.kernels.gemm_formats import KernelPath

DATA = Path(__file__).parents[1] / "data" / "alignment.yaml"
LOAD_BYTES = 16  # most bytes per load
DOUBT = 0.75  # half-width of a halving's log factor, relative to the factor (assumed, see docs)
MADE_BY = "NVIDIA"  # the vendor with published timings


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A published statement about alignment."""

    what: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """A timing on one device: seconds with misaligned rows, divided by seconds with aligned rows."""

    device: str
    slower: float
    what: str
    source: str
    row_bytes: int = 2  # the largest power of two that divides a row
    measured: bool = False  # whether chipwise measured it, so that it takes precedence for the device

    def __post_init__(self) -> None:
        if self.slower <= 0:
            raise SpecError("must be above zero", field="slower")
        if self.row_bytes not in (1, 2, 4, 8):
            raise SpecError("must be 1, 2, 4 or 8: rows of 16 bytes are aligned", field="row_bytes")

    @property
    def for_each_halving(self) -> float:
        """Logarithm of the factor by which each halving of the load size slows the tiles down."""
        return log(self.slower) / log2(LOAD_BYTES / self.row_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Contents of ``data/alignment.yaml``: requirements, timings of matrix products and of training, other statements.

    Timings of training steps are only used to check predictions.
    """

    needs: tuple[Statement, ...]
    products: tuple[Timing, ...]
    others: tuple[Statement, ...]
    steps: tuple[Timing, ...]


@functools.cache
def published() -> Published:
    """Reads ``data/alignment.yaml``."""
    return build(Published, read_yaml(DATA), file=str(DATA))


@functools.cache
def for_each_halving(device: str) -> float:
    """Logarithm of the factor by which each halving of the load size slows tiles down on ``device``.

    It is the median of the published timings, or of chipwise's own timings on ``device`` if there are any.
    """
    known = published().products
    here = [timing for timing in known if timing.measured and timing.device == device]
    return statistics.median(timing.for_each_halving for timing in here or known)


def halvings(
    m: Float64Array, n: Float64Array, k: Float64Array, path: KernelPath, device: DeviceProfile
) -> Float64Array:
    """How many times the load size of a matrix product is halved below 16 bytes.

    Input rows of ``k`` values and output rows of ``n`` values may need different loads; the smaller load counts. The
    result is 0 if all rows are multiples of 16 bytes, and on chips without published timings. A single output row needs
    no alignment.
    """
    if device.kind != "gpu" or device.vendor != MADE_BY:
        return np.zeros_like(m)
    going_in, coming_out = _load_bytes(k, path.multiplied_in.size_bytes), _load_bytes(n, path.output_bytes)
    return np.log2(LOAD_BYTES / np.minimum(going_in, np.where(m > 1, coming_out, LOAD_BYTES)))


def _load_bytes(size: Float64Array, value_bytes: float) -> Float64Array:
    """Largest power of two, at most 16, that divides the number of bytes in a row of ``size`` values."""
    row = np.maximum(np.floor(size * value_bytes), 1).astype(np.int64)
    lowest: Size = np.minimum(row & -row, LOAD_BYTES)
    return np.asarray(lowest, dtype=np.float64)
