"""Quantisers: matrices as integers and scales in the layouts of the runtimes' kernels. Symmetric: zero stays zero.

All exports and all evaluations of quantised models pack matrices through a :class:`Packing`. A quantiser that needs
calibration data (GPTQ, AWQ) can be added to ``QUANTISERS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import AnyArray, Float32Array
from chipwise.errors import Unsupported

BLOCK = 32  # values along k that share one int4 scale
# Largest int8 weight. x86 processors without VNNI multiply uint8 activations by int8 weights and add two neighbouring
# products in 16 bits, which hold at most 32,767: 2 * 255 * 64 fits, 2 * 255 * 127 saturates and the answer is wrong.
MOST_INT8 = 64


@dataclass(frozen=True, slots=True)
class Packed:
    """A matrix (n, k) in a weight format: its stored integers and their scales."""

    form: str
    values: AnyArray  # int8: (n, k); q8_0: (n, blocks, 32); int4: (n, blocks, 16), two to a byte
    scales: Float32Array  # int8: (n,); otherwise (n, blocks)
    k: int

    def restored(self) -> Float32Array:
        """The dequantised matrix (n, k)."""
        if self.form == "int8":
            return np.asarray(self.values * self.scales[:, None], np.float32)
        if self.form == "q8_0":
            return _in_rows(self.values * self.scales[..., None], self.k)
        return dequantize_int4(self.values, self.scales, self.k)


def no_inputs() -> None:
    """For quantisation without calibration: no inputs are known."""


class Quantiser(Protocol):
    """Chooses the integers of a matrix. Deterministic."""

    def __call__(self, matrix: Float32Array, form: str, *, inputs: Callable[[], Float32Array | None]) -> Packed:
        """Packs ``matrix`` (n, k).

        Args:
            matrix: The weights.
            form: ``int8`` (a scale for each row), ``int4`` or ``q8_0`` (for each block of 32 values).
            inputs: Returns the inputs of the matrix on calibration batches (rows, k); None without calibration. The
                batches run on the first call.

        Raises:
            Unsupported: There is no such format.
        """
        ...


def nearest(matrix: Float32Array, form: str, *, inputs: Callable[[], Float32Array | None] = no_inputs) -> Packed:
    """Rounds each value to the nearest one of ``form``, without using inputs."""
    forms = {"int8": quantize_int8, "int4": quantize_int4, "q8_0": quantize_q8_0}
    if form not in forms:
        raise Unsupported(f"weights cannot be rounded to {form!r}; choose {' or '.join(forms)}")
    values, scales = forms[form](matrix)
    return Packed(form, values, scales, matrix.shape[1])


QUANTISERS: Mapping[str, Quantiser] = {"nearest": nearest}
"""All quantisers, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How the matrices of a model are packed.

    Attributes:
        quantiser: Chooses the integers.
        inputs: Returns the inputs of the matrix of this name on calibration batches (rows, k); None if not known.
    """

    quantiser: Quantiser = nearest
    inputs: Callable[[str], Float32Array | None] = lambda name: None

    def pack(self, name: str, matrix: Float32Array, form: str) -> Packed:
        """Packs ``matrix``, whose inputs are those of the weight ``name`` of the torch module."""
        return self.quantiser(matrix, form, inputs=lambda: self.inputs(name))


NEAREST = Packing()


def quantize_int8(matrix: Float32Array) -> tuple[npt.NDArray[np.int8], Float32Array]:
    """Rows of ``matrix`` (n, k) as int8 in -64 … 64 and their scales (n,): ``matrix ≈ values * scales[:, None]``."""
    scales = (np.abs(matrix).max(axis=1) / MOST_INT8).astype(np.float32)
    scales[scales == 0] = 1.0
    return np.round(matrix / scales[:, None]).astype(np.int8), scales


def quantize_int4(matrix: Float32Array) -> tuple[npt.NDArray[np.uint8], Float32Array]:
    """Rows of ``matrix`` (n, k) in blocks of 32 along k: packed (n, blocks, 16) and scales (n, blocks).

    A stored nibble is the value plus 8, the lower nibble first. A few scales are tried for each block; the one with the
    least squared error is kept.
    """
    blocks = _blocks(matrix)
    values, scales = _round_blocks(blocks)
    stored = (values + 8).astype(np.uint8)
    packed: npt.NDArray[np.uint8] = np.bitwise_or(
        stored[..., 0::2], np.left_shift(stored[..., 1::2], 4), dtype=np.uint8
    )
    return packed, scales


def dequantize_int4(packed: npt.NDArray[np.uint8], scales: Float32Array, k: int) -> Float32Array:
    """The dequantised matrix (n, k) of ``packed`` and ``scales``."""
    values = np.empty((*packed.shape[:2], BLOCK), np.float32)
    values[..., 0::2] = (packed & 15).astype(np.float32) - 8
    values[..., 1::2] = (packed >> 4).astype(np.float32) - 8
    return _in_rows(values * scales[..., None], k)


def quantize_q8_0(matrix: Float32Array) -> tuple[npt.NDArray[np.int8], Float32Array]:
    """Rows of ``matrix`` (n, k) in blocks of 32 along k, as llama.cpp's Q8_0 rounds them, half away from zero.

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
    """Blocks (n, blocks, 32) as a matrix (n, k)."""
    return np.ascontiguousarray(blocks.reshape(len(blocks), -1)[:, :k], dtype=np.float32)


def _blocks(matrix: Float32Array) -> Float32Array:
    n, k = matrix.shape
    count = -(-k // BLOCK)
    padded = np.zeros((n, count * BLOCK), np.float32)
    padded[:, :k] = matrix
    return padded.reshape(n, count, BLOCK)


def _round_blocks(blocks: Float32Array) -> tuple[npt.NDArray[np.int8], Float32Array]:
    """Integers in -8 … 7 and the scale per block with the least squared error."""
    extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[..., None], -1)
    best_error = np.full(blocks.shape[:2], np.inf, np.float32)
    best_values = np.zeros(blocks.shape, np.int8)
    best_scale = np.ones(blocks.shape[:2], np.float32)
    for divisor in (-8.0, -8.7, 7.0, 7.7):
        scale = extreme / np.float32(divisor)
        scale[scale == 0] = 1.0
        values = np.clip(np.round(blocks / scale), -8, 7)
        error = np.square(values * scale - blocks).sum(-1)
        better = error < best_error
        best_error = np.where(better, error, best_error)
        best_values[better] = values[better].astype(np.int8)
        best_scale[better] = scale[..., 0][better]
    return best_values, best_scale
