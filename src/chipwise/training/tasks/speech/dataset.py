"""Data set of labelled spectrograms: training batches are shifted in time and partly masked.

References:
    Masked bands and intervals: Park et al. 2019, SpecAugment, arXiv:1904.08779.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chipwise.training.data.arrays import LabelledArrays
from chipwise.training.data.sound.clips import stretches

SHIFT = 0.1  # largest shift as a share of all frames, in each direction
HIDDEN_TIME, HIDDEN_BANDS = 0.2, 0.15  # largest mask, as a share of all frames and of all bands


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledSpectrograms(LabelledArrays):
    """Spectrograms (n, bands, frames) and labels; see :class:`chipwise.training.data.arrays.LabelledArrays`."""

    def changed(self, inputs: NDArray[np.float32], random: np.random.Generator) -> NDArray[np.float32]:
        """Spectrograms shifted in time (edges repeated), with one time interval and one range of bands masked."""
        count, bands, frames = inputs.shape
        most = int(SHIFT * frames)
        moved = np.arange(frames) - random.integers(-most, most + 1, (count, 1))
        found = np.take_along_axis(inputs, np.clip(moved, 0, frames - 1)[:, None, :], axis=2)
        hidden_T = stretches(count, frames, HIDDEN_TIME, random)[:, None, :]
        hidden_M = stretches(count, bands, HIDDEN_BANDS, random)[:, :, None]
        return np.where(hidden_T | hidden_M, np.float32(0), found)
