"""Quantisers that use the calibration inputs of a matrix, and the table of all quantisers.

The loss of a rounded matrix Q is the squared error of its outputs on calibration inputs, ``tr((Q - W) H (Q - W)ᵀ)``,
where H holds the second moments of the inputs, slightly damped. Axes: n outputs, k inputs (padded to whole groups), g
values of a group, which share a scale.

References:
    Frantar et al. 2022, GPTQ (arXiv:2210.17323): rounds the columns in turn and passes the error of each column on to
    later columns.
    Behdin et al. 2023, QuantEase (arXiv:2309.01885): chooses each integer in turn, given all other integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from chipwise.core.arrays import AnyArray, Float32Array
from chipwise.model.blocks.quantize import GRID, Grid, Packed, Quantiser, levels, nearest, no_inputs, pack_integers

DAMPING = 0.01  # added to the diagonal of H, as a share of the diagonal's mean
SWEEPS = 4  # how often all integers and scales are chosen again after GPTQ
ROWS, BLOCK = 1024, 32  # rows per view; columns that are rounded before all later columns are updated
FRACTIONS = np.linspace(0.6, 1.1, 21, dtype=np.float32)  # shares of a group's range that its levels may span
FIXED = ("q8_0", "fp8")  # formats that are rounded to nearest: the scale follows from the largest value
Inputs = Callable[[], Float32Array | None]


@dataclass(slots=True)
class _Rounding:
    """A matrix that is being rounded. ``values + zeros`` is always between ``low`` and ``high``."""

    matrix: Float32Array  # (n, k)
    values: Float32Array  # (n, k); 0 stands for a weight of 0
    scales: Float32Array  # (n, k / g)
    zeros: Float32Array  # (n, k / g): by how much the levels are shifted
    low: int
    high: int
    symmetric: bool
    positive: bool  # whether scales must be positive

    @classmethod
    def of(cls, matrix: Float32Array, form: str, grid: Grid) -> _Rounding:
        low, high, size = levels(form, grid, matrix.shape[1])
        groups = -(-matrix.shape[1] // size)
        padded = np.zeros((len(matrix), groups * size), np.float32)
        padded[:, : matrix.shape[1]] = matrix
        scales = np.ones((len(matrix), groups), np.float32)
        symmetric = grid.symmetric or form != "int4"
        return cls(padded, np.zeros_like(padded), scales, scales * 0, low, high, symmetric, grid.positive)

    def by_rows(self) -> Iterator[_Rounding]:
        """Views of ``ROWS`` rows each, so that a block of columns fits into a core's cache; rows are independent."""
        for start in range(0, len(self.matrix), ROWS):
            rows = slice(start, start + ROWS)
            yield replace(
                self,
                matrix=self.matrix[rows],
                values=self.values[rows],
                scales=self.scales[rows],
                zeros=self.zeros[rows],
            )

    def groups(self) -> list[slice]:
        """The columns of each group, as slices."""
        size = self.matrix.shape[1] // self.scales.shape[1]
        return [slice(start, start + size) for start in range(0, self.matrix.shape[1], size)]

    def nearest(self, columns: Float32Array, i: int) -> Float32Array:
        """The integers nearest to ``columns`` (n, …) of group ``i``."""
        return _nearest(columns, self.scales[:, i, None], self.zeros[:, i, None], self.low, self.high)

    def fit(self, group: Float32Array, importance: Float32Array, i: int) -> None:
        """Chooses scale and zero of group ``i`` for the least squared error of ``group`` (n, g), weighted by column."""
        least, most = np.minimum(group.min(axis=1), 0), np.maximum(group.max(axis=1), 0)
        extreme = np.where(-least > most, least, most)
        errors = np.full(len(group), np.inf, np.float32)
        for fraction in FRACTIONS:
            for scale, zero in self._tried(fraction * least, fraction * most, fraction * extreme):
                scale = np.where(scale == 0, np.float32(1), scale)
                values = _nearest(group, scale[:, None], zero[:, None], self.low, self.high)
                square, product = (values * values) @ importance, (values * group) @ importance
                scale = np.where((square > 0) & (product != 0), product / np.where(square > 0, square, 1), scale)
                error = np.square(values * scale[:, None] - group) @ importance
                better = error < errors
                errors[better] = error[better]
                self.scales[better, i], self.zeros[better, i] = scale[better], zero[better]

    def _tried(self, least: Float32Array, most: Float32Array, extreme: Float32Array) -> list[tuple[AnyArray, AnyArray]]:
        """Candidate scales and zeros, each (n,), whose levels span the range from ``least`` to ``most``."""
        if self.symmetric:
            tried = [extreme / end for end in sorted({self.high, self.low} - {-self.high})]
            return [(np.abs(scale) if self.positive else scale, 0 * extreme) for scale in tried]
        scale = (most - least) / (self.high - self.low)
        return [(scale, np.clip(np.round(-least / np.where(scale == 0, 1, scale)), 0, 15) + self.low)]

    def packed(self, form: str, k: int) -> Packed:
        """The matrix as stored: its first ``k`` columns, without the padding."""
        blocks = self.values.reshape(*self.scales.shape, -1)
        zeros = None if self.symmetric else self.zeros - self.low
        return pack_integers(form, blocks, self.scales, k, zeros)


def searched(matrix: Float32Array, form: str, *, inputs: Inputs = no_inputs, grid: Grid = GRID) -> Packed:
    """Rounds to nearest. Scales minimise the squared error, with columns weighted by their inputs' second moments."""
    if form in FIXED:
        return nearest(matrix, form)
    found = _Rounding.of(matrix, form, grid)
    importance = np.diag(_moments(inputs(), matrix.shape[1], found.matrix.shape[1])).copy()
    for i, part in enumerate(found.groups()):
        found.fit(found.matrix[:, part], importance[part], i)
        found.values[:, part] = found.nearest(found.matrix[:, part], i)
    return found.packed(form, matrix.shape[1])


def gptq(matrix: Float32Array, form: str, *, inputs: Inputs = no_inputs, grid: Grid = GRID) -> Packed:
    """Minimises the squared error of the outputs: GPTQ first, then improves each integer and each scale in turn.

    Without calibration inputs, it does the same as :func:`searched`.
    """
    if form in FIXED or (given := inputs()) is None:
        return searched(matrix, form, grid=grid)
    found = _Rounding.of(matrix, form, grid)
    moments = _moments(given, matrix.shape[1], found.matrix.shape[1])
    passing = np.linalg.cholesky(np.linalg.inv(moments.astype(np.float64))).T.astype(np.float32)
    for part in found.by_rows():
        _pass_errors(part, passing)
        for _ in range(SWEEPS):
            _improve(part, moments)
    return found.packed(form, matrix.shape[1])


def _pass_errors(found: _Rounding, passing: Float32Array) -> None:
    """Rounds the columns in turn. ``passing`` (k, k): the share of a column's error that each later column takes."""
    left = found.matrix.copy()  # what the columns that are not rounded yet should hold
    for i, part in enumerate(found.groups()):
        found.fit(left[:, part], np.asarray(1 / np.diag(passing[part, part]) ** 2, np.float32), i)
        for block in _blocks(part):
            own, errors = passing[block, block], np.empty_like(left[:, block])
            for j, at in enumerate(range(block.start, block.stop)):
                found.values[:, at, None] = found.nearest(left[:, at, None], i)
                errors[:, j] = (left[:, at] - found.values[:, at] * found.scales[:, i]) / own[j, j]
                left[:, at + 1 : block.stop] -= errors[:, j, None] * own[j, j + 1 :]
            left[:, block.stop :] -= errors @ passing[block, block.stop :]


def _improve(found: _Rounding, moments: Float32Array) -> None:
    """Replaces each integer and each scale in turn with the best value, given all others. The loss never rises."""
    parts = found.groups()
    restored = found.values * np.repeat(found.scales, parts[0].stop, axis=1)
    slope = (restored - found.matrix) @ moments  # half the gradient of the loss, (n, k)
    for i, part in enumerate(parts):
        own, before = moments[part, part], restored[:, part]
        values, around, scale = found.values[:, part], slope[:, part].copy(), found.scales[:, i].copy()
        for block in _blocks(slice(0, values.shape[1])):
            inner, near, changes = own[block, block], around[:, block], np.empty_like(values[:, block])
            for j, at in enumerate(range(block.start, block.stop)):
                wanted = values[:, at] * scale - near[:, j] / inner[j, j]
                chosen = found.nearest(wanted[:, None], i)[:, 0]
                changes[:, j] = (chosen - values[:, at]) * scale
                near += changes[:, j, None] * inner[j]
                values[:, at] = chosen
            for other in (slice(0, block.start), slice(block.stop, None)):
                around[:, other] += changes @ own[block, other]
        curvature = np.einsum("ng,ng->n", values @ own, values)
        scale -= np.einsum("ng,ng->n", values, around) / np.where(curvature > 0, curvature, np.inf)
        wrong = scale <= 0 if found.positive else scale == 0
        found.scales[:, i] = np.where(wrong, found.scales[:, i], scale)
        slope += (values * found.scales[:, i, None] - before) @ moments[part]


def _blocks(part: slice) -> list[slice]:
    """Splits the columns ``part`` into blocks.

    One matrix product passes the errors of a block on to other blocks.
    """
    return [slice(start, min(start + BLOCK, part.stop)) for start in range(part.start, part.stop, BLOCK)]


def _moments(inputs: Float32Array | None, k: int, width: int) -> Float32Array:
    """Damped second moments of ``inputs`` (rows, k), padded to (width, width).

    Without inputs, the second moments are those of independent inputs: the identity matrix.
    """
    moments = np.zeros((width, width), np.float32)
    moments[:k, :k] = np.eye(k) if inputs is None else inputs.T @ inputs / len(inputs)
    mean = float(np.trace(moments)) / k
    moments[np.diag_indices(width)] += DAMPING * mean if mean > 0 else 1.0
    return moments


def _nearest(values: Float32Array, scale: Float32Array, zero: Float32Array, low: int, high: int) -> Float32Array:
    return np.asarray(np.clip(np.round(values / scale), low - zero, high - zero), np.float32)


QUANTISERS: Mapping[str, Quantiser] = {"nearest": nearest, "searched": searched, "gptq": gptq}
"""All quantisers of single matrices, by name."""
