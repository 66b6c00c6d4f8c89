"""Windows of patches: which positions share a window, and which position bias each pair has.

Positions of a grid are numbered row by row. Everything here is plain arrays, so that torch and ONNX use the same
numbers.

References:
    Shifted windows and bias tables: Liu et al. 2021, Swin Transformer, arXiv:2103.14030, section 3.2 and figure 4.
        Three more biases for a class token: Bao et al. 2021, BEiT, arXiv:2106.08254.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.image.stem import ImageStem

HIDDEN = -1e9  # added to the scores of pairs that share a window only through the shift


@dataclass(frozen=True, slots=True, kw_only=True)
class Squares:
    """Windows of ``side`` by ``side`` positions on a square ``grid``, cyclically shifted by ``shift`` positions."""

    grid: int
    side: int
    shift: int = 0

    @property
    def count(self) -> int:
        """Windows along each axis; those at the far edges may be padded."""
        return -(-self.grid // self.side)

    @property
    def number(self) -> int:
        """Windows of a grid."""
        return self.count**2

    @property
    def filled(self) -> int:
        """Positions along each axis, including the padding of the last windows."""
        return self.count * self.side

    @property
    def positions(self) -> int:
        """Positions in all windows, including padding."""
        return self.filled**2

    @property
    def plain(self) -> bool:
        """Whether windows are neither padded nor shifted."""
        return self.filled == self.grid and not self.shift

    def order(self) -> npt.NDArray[np.int64]:
        """The position in each place of each window, (windows, side²); ``grid²`` at padding."""
        places = np.full((self.filled, self.filled), self.grid**2, np.int64)
        places[: self.grid, : self.grid] = np.arange(self.grid**2).reshape(self.grid, self.grid)
        moved = np.roll(places, (-self.shift, -self.shift), (0, 1))
        parts = moved.reshape(self.count, self.side, self.count, self.side).transpose(0, 2, 1, 3)
        return np.ascontiguousarray(parts.reshape(self.number, self.side**2))

    def back(self) -> npt.NDArray[np.int64]:
        """The inverse of :meth:`order`: the place in the windows of each position of the grid, (grid²,)."""
        return np.ascontiguousarray(np.argsort(self.order().ravel(), kind="stable")[: self.grid**2])

    def hidden(self) -> npt.NDArray[np.float32] | None:
        """Mask for pairs that share a window only through the shift, (windows, side², side²).

        None if windows are not shifted.
        """
        if not self.shift:
            return None
        ends = (0, self.filled - self.side, self.filled - self.shift, self.filled)
        region = np.zeros(self.filled, np.int64)
        for i, (begin, end) in enumerate(pairwise(ends)):
            region[begin:end] = i
        both = region[:, None] * 3 + region
        parts = both.reshape(self.count, self.side, self.count, self.side).transpose(0, 2, 1, 3)
        of_square = parts.reshape(self.number, self.side**2)
        return np.where(of_square[:, :, None] == of_square[:, None], np.float32(0), np.float32(HIDDEN))


def squares_of(block: Attention, stem: ImageStem, layer: int) -> Squares | None:
    """The windows of layer ``layer``, shifted in every second layer if the block has ``shift``; None if global."""
    if block.square is None:
        return None
    shift = block.square // 2 if block.shift and layer % 2 else 0
    return Squares(grid=stem.grid, side=block.square, shift=shift)


def bias_rows(stem: ImageStem, square: int | None) -> int:
    """Rows of a position-bias table for an image or a window of it: one for each distance.

    A class token adds three: from it, to it, and from it to itself.

    >>> (
    ...     bias_rows(ImageStem(image_size=28, patch=4, prefix_tokens=0), None),
    ...     bias_rows(ImageStem(image_size=28, patch=4), None),
    ... )
    (169, 172)
    """
    side = stem.grid if square is None else square
    with_token = square is None and stem.prefix_tokens > 0
    return int((2 * side - 1) ** stem.axes) + 3 * with_token


def bias_places(stem: ImageStem, square: int | None) -> npt.NDArray[np.int64]:
    """The table row for each pair of positions, (T, T), of an image with its class token or of a window."""
    side = stem.grid if square is None else square
    axes = np.meshgrid(*[np.arange(side)] * stem.axes, indexing="ij")
    found = np.zeros((side**stem.axes,) * 2, np.int64)
    for axis in axes:
        flat = axis.ravel()
        found = found * (2 * side - 1) + flat[:, None] - flat + side - 1
    if square is not None or not stem.prefix_tokens:
        return found
    rows = bias_rows(stem, None)
    whole = np.full((len(found) + 1,) * 2, rows - 1, np.int64)
    whole[0, 1:], whole[1:, 0], whole[1:, 1:] = rows - 3, rows - 2, found
    return whole
