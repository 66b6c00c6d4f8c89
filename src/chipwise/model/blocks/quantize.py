"""Quantises matrices to integers and scales, in the layouts that the runtimes' kernels read. Zero stays exactly zero.

All exports and all evaluations of quantised models pack matrices through a :class:`Packing`. Quantisers that use
calibration data, and a table of all quantisers, are in ``quantisers.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import AnyArray, Float32Array
from chipwise.errors import InputError, Unsupported

BLOCK = 32  # values along k that share one int4 scale
BLOCKS = (16, 32, 64, 128)  # block sizes that ONNX Runtime's int4 kernel reads
# Largest int8 weight. x86 processors without VNNI multiply uint8 activations by int8 weights and add two neighbouring
# products in 16 bits, which hold at most 32,767: 2 * 255 * 64 fits, 2 * 255 * 127 saturates and the answer is wrong.
MOST_INT8 = 64


def _e4m3() -> Float32Array:
    """The value of each byte as an E4M3 float (256,): sign, 4 exponent bits, 3 mantissa bits. 127 and 255 mean NaN."""
    codes = np.arange(128)
    exponent, mantissa = codes >> 3, (codes & 7) / 8
    sizes = np.where(exponent == 0, mantissa * 2.0**-6, (1 + mantissa) * 2.0 ** (exponent - 7))
    return np.concatenate([sizes, -sizes]).astype(np.float32)


_E4M3 = _e4m3()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """How int4 values share scales. All other formats have a fixed grid.

    Attributes:
        block: Number of values along k that share a scale: 16, 32, 64 or 128. GGUF files have 32.
        symmetric: Whether all blocks have the same zero point; otherwise each block stores its own.
        positive: Whether scales must be positive, as for XNNPACK. A negative scale can map the value with the largest
            magnitude to -8 even if that value is positive.
    """

    block: int = BLOCK
    symmetric: bool = True
    positive: bool = False

    def __post_init__(self) -> None:
        if self.block not in BLOCKS:
            raise InputError(f"int4 weights share a scale in groups of {', '.join(map(str, BLOCKS))}, not {self.block}")


GRID = Grid()


@dataclass(frozen=True, slots=True)
class Packed:
    """A matrix (n, k) in a weight format: its stored integers and their scales."""

    form: str
    values: AnyArray  # int8, fp8: (n, k); q8_0: (n, blocks, 32); int4: (n, blocks, block / 2), two to a byte
    scales: Float32Array  # int8, fp8: (n,); otherwise (n, blocks)
    k: int
    zeros: npt.NDArray[np.uint8] | None = None  # int4: the zero points (n, blocks); None: 8 everywhere

    def restored(self) -> Float32Array:
        """The dequantised matrix (n, k)."""
        if self.form == "int8":
            return np.asarray(self.values * self.scales[:, None], np.float32)
        if self.form == "fp8":
            return np.asarray(_E4M3[self.values] * self.scales[:, None], np.float32)
        if self.form == "q8_0":
            return _in_rows(self.values * self.scales[..., None], self.k)
        return dequantize_int4(self.values, self.scales, self.k, self.zeros)


def no_inputs() -> None:
    """Returns None: for quantisation without calibration, no inputs are known."""


class Quantiser(Protocol):
    """Interface of functions that quantise a matrix. They are deterministic."""

    def __call__(
        self, matrix: Float32Array, form: str, *, inputs: Callable[[], Float32Array | None], grid: Grid
    ) -> Packed:
        """Packs ``matrix`` (n, k).

        Args:
            matrix: The weights.
            form: ``int8`` or ``fp8`` (one scale per row), ``int4`` or ``q8_0`` (one scale per block of values).
            inputs: Returns the matrix's inputs on calibration batches (rows, k); None without calibration. The model
                runs on the batches at the first call.
            grid: How int4 values share scales.

        Raises:
            Unsupported: There is no such format.
        """
        ...


def nearest(
    matrix: Float32Array,
    form: str,
    *,
    inputs: Callable[[], Float32Array | None] = no_inputs,
    grid: Grid = GRID,
) -> Packed:
    """Rounds each value to the nearest value of the format ``form``, without using inputs."""
    size = _checked(form, grid)
    if form == "q8_0":
        return Packed(form, *quantize_q8_0(matrix), matrix.shape[1])
    if form == "int8":
        return Packed(form, *quantize_int8(matrix), matrix.shape[1])
    if form == "fp8":
        return Packed(form, *quantize_fp8(matrix), matrix.shape[1])
    blocks = _blocks(matrix, size)
    if grid.symmetric:
        values, scales = _round_blocks(blocks, positive=grid.positive)
        return Packed(form, _nibbles(values + 8), scales, matrix.shape[1])
    least, most = np.minimum(blocks.min(axis=-1), 0), np.maximum(blocks.max(axis=-1), 0)
    scales = np.where(most > least, (most - least) / 15, 1).astype(np.float32)
    zeros = np.round(-least / scales)
    values = np.clip(np.round(blocks / scales[..., None]) + zeros[..., None], 0, 15)
    return Packed(form, _nibbles(values), scales, matrix.shape[1], zeros.astype(np.uint8))


def levels(form: str, grid: Grid, k: int) -> tuple[int, int, int]:
    """The smallest and the largest integer of a format, and how many values along k share a scale.

    Raises:
        Unsupported: There is no such format, or its scales cannot be chosen freely.
    """
    size = _checked(form, grid)
    return {"int8": (-MOST_INT8, MOST_INT8, k), "q8_0": (-127, 127, size), "int4": (-8, 7, size)}[form]


def pack_integers(
    form: str, values: Float32Array, scales: Float32Array, k: int, zeros: Float32Array | None = None
) -> Packed:
    """Stores integers (n, blocks, block), block scales (n, blocks) and, for int4, the nibbles of the zero points."""
    if form == "int4":
        stored = _nibbles(values + (8 if zeros is None else zeros[..., None]))
        return Packed(form, stored, scales, k, None if zeros is None else zeros.astype(np.uint8))
    if form == "int8":
        return Packed(form, values.astype(np.int8)[:, 0], scales[:, 0], k)
    return Packed(form, values.astype(np.int8), scales, k)


def _checked(form: str, grid: Grid) -> int:
    """Checks that ``form`` is a weight format; returns the block size of formats whose scales are per block."""
    if form not in (forms := ("int8", "int4", "q8_0", "fp8")):
        raise Unsupported(f"weights cannot be rounded to {form!r}; choose {' or '.join(forms)}")
    return grid.block if form == "int4" else BLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How the matrices of a model are packed.

    Attributes:
        quantiser: Chooses the integers.
        inputs: Given a matrix's name, returns its inputs on calibration batches (rows, k), or None if they are unknown.
        grid: How int4 values share scales.
    """

    quantiser: Quantiser = nearest
    inputs: Callable[[str], Float32Array | None] = lambda name: None
    grid: Grid = GRID

    def pack(self, name: str, matrix: Float32Array, form: str) -> Packed:
        """Packs ``matrix``, using the calibration inputs of the torch module's weight ``name``."""
        return self.quantiser(matrix, form, inputs=lambda: self.inputs(name), grid=self.grid)


NEAREST = Packing()


def quantize_int8(matrix: Float32Array) -> tuple[npt.NDArray[np.int8], Float32Array]:
    """Rounds ``matrix`` (n, k) to int8 in -64 … 64 with one scale per row: ``matrix ≈ values * scales[:, None]``."""
    scales = (np.abs(matrix).max(axis=1) / MOST_INT8).astype(np.float32)
    scales[scales == 0] = 1.0
    return np.round(matrix / scales[:, None]).astype(np.int8), scales


def quantize_fp8(matrix: Float32Array) -> tuple[npt.NDArray[np.uint8], Float32Array]:
    """Rounds ``matrix`` (n, k) to E4M3 floats (largest value: 448); returns their bytes and one scale per row."""
    scales = (np.abs(matrix).max(axis=1) / _E4M3[126]).astype(np.float32)
    scales[scales == 0] = 1.0
    scaled = matrix / scales[:, None]
    middles = (_E4M3[:126] + _E4M3[1:127]) / 2
    return (np.searchsorted(middles, np.abs(scaled)) + np.where(scaled < 0, 128, 0)).astype(np.uint8), scales


def quantize_int4(matrix: Float32Array) -> tuple[npt.NDArray[np.uint8], Float32Array]:
    """Rounds ``matrix`` (n, k) in blocks of 32 along k: returns packed (n, blocks, 16) and scales (n, blocks).

    A stored nibble is the value plus 8; the lower nibble comes first. For each block a few scales are tried; the one
    with the least squared error is used.
    """
    values, scales = _round_blocks(_blocks(matrix))
    return _nibbles(values + 8), scales


def dequantize_int4(
    packed: npt.NDArray[np.uint8], scales: Float32Array, k: int, zeros: npt.NDArray[np.uint8] | None = None
) -> Float32Array:
    """The dequantised matrix (n, k). The zero points ``zeros`` are 8 unless given."""
    values = np.stack((packed & 15, packed >> 4), axis=-1).reshape(*packed.shape[:2], -1).astype(np.float32)
    return _in_rows((values - (8 if zeros is None else zeros[..., None])) * scales[..., None], k)


def packed_zeros(zeros: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Packs zero points (n, blocks) two to a byte, as ONNX Runtime reads them. Rows of odd length are padded with 8."""
    odd = np.full((len(zeros), zeros.shape[1] % 2), 8, np.uint8)
    return _nibbles(np.concatenate([zeros, odd], axis=1))


def _nibbles(stored: AnyArray) -> npt.NDArray[np.uint8]:
    """Packs integers from 0 to 15 two to a byte, with the lower nibble first."""
    whole = stored.astype(np.uint8)
    return np.bitwise_or(whole[..., 0::2], np.left_shift(whole[..., 1::2], 4), dtype=np.uint8)


def quantize_q8_0(matrix: Float32Array) -> tuple[npt.NDArray[np.int8], Float32Array]:
    """Rounds ``matrix`` (n, k) in blocks of 32 along k, as llama.cpp's Q8_0 does (halves away from zero).

    Returns integers (n, blocks, 32) in -127 … 127, and scales (n, blocks) representable in FP16.
    """
    blocks = _blocks(matrix)
    scales = np.abs(blocks).max(axis=-1) / np.float32(127)
    with np.errstate(divide="ignore"):
        scaled = blocks * np.where(scales == 0, np.float32(0), 1 / scales)[..., None]
    size = np.abs(scaled)
    whole = np.floor(size) + np.floor(2 * (size - np.floor(size)))
    return (np.sign(scaled) * whole).astype(np.int8), scales.astype(np.float16).astype(np.float32)


def _in_rows(blocks: AnyArray, k: int) -> Float32Array:
    """Joins blocks (n, blocks, block) to a matrix (n, k)."""
    return np.ascontiguousarray(blocks.reshape(len(blocks), -1)[:, :k], dtype=np.float32)


def _blocks(matrix: Float32Array, size: int = BLOCK) -> Float32Array:
    n, k = matrix.shape
    count = -(-k // size)
    padded = np.zeros((n, count * size), np.float32)
    padded[:, :k] = matrix
    return padded.reshape(n, count, size)


def _round_blocks(blocks: Float32Array, *, positive: bool = False) -> tuple[npt.NDArray[np.int8], Float32Array]:
    """Rounds blocks to integers in -8 … 7; returns them and, per block, the scale with the least squared error."""
    extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[..., None], -1)
    best_error = np.full(blocks.shape[:2], np.inf, np.float32)
    best_values = np.zeros(blocks.shape, np.int8)
    best_scale = np.ones(blocks.shape[:2], np.float32)
    for divisor in (-8.0, -8.7, 7.0, 7.7):
        scale = extreme / np.float32(divisor)
        scale = np.abs(scale) if positive else scale
        scale[scale == 0] = 1.0
        values = np.clip(np.round(blocks / scale), -8, 7)
        error = np.square(values * scale - blocks).sum(-1)
        better = error < best_error
        best_error = np.where(better, error, best_error)
        best_values[better] = values[better].astype(np.int8)
        best_scale[better] = scale[..., 0][better]
    return best_values, best_scale
