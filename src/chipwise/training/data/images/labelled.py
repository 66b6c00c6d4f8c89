"""Labelled images as a data set: training shifts images by a few pixels and may mirror them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from chipwise.training.data.arrays import LabelledArrays

SHIFT = 2  # largest shift in pixels, in each direction


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledImages(LabelledArrays):
    """Labelled images, shifted at random in training; see :class:`chipwise.training.data.arrays.LabelledArrays`."""

    flip: ClassVar[bool] = False

    def changed(self, inputs: NDArray[np.float32], random: np.random.Generator) -> NDArray[np.float32]:
        """Images shifted by up to two pixels (edges repeated); with ``flip``, each is mirrored with probability ½."""
        padded = np.pad(inputs, ((0, 0), (0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT)), mode="edge")
        rows, columns = inputs.shape[2:]
        views = np.lib.stride_tricks.sliding_window_view(padded, (rows, columns), axis=(2, 3))
        y, x = random.integers(0, 2 * SHIFT + 1, (2, len(inputs)))
        found = views[np.arange(len(inputs)), :, y, x]
        if self.flip:
            mirrored = random.random(len(inputs)) < 0.5
            found = np.where(mirrored[:, None, None, None], found[..., ::-1], found)
        return np.ascontiguousarray(found)


class FlippedImages(LabelledImages):
    """Labelled images that are shifted and, with probability one half, mirrored in training."""

    flip: ClassVar[bool] = True
