"""The small network that corrects the formula for matrix products; all kinds of kernels share its layers.

Each kind of kernel has separate biases and gains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from chipwise.core.arrays import Float32Array, Float64Array

SLOPE = 0.05  # slope of the leaky ReLU
CHUNK = 8192  # rows evaluated at a time, so that layers stay in cache
ARRAYS = ("mean", "scale", "first", "first_bias", "first_gain", "second", "second_bias", "last", "offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network with two hidden layers of leaky ReLUs.

    K is the number of kinds of kernels, F the number of features; H and G are the widths of the hidden layers.
    """

    mean: Float32Array  # (F,)
    scale: Float32Array  # (F,)
    first: Float32Array  # (F, H)
    first_bias: Float32Array  # (K, H)
    first_gain: Float32Array  # (K, H), added to one
    second: Float32Array  # (H, G)
    second_bias: Float32Array  # (K, G)
    last: Float32Array  # (K, G)
    offset: Float32Array  # (K,)
    kinds: tuple[str, ...]
    bound: float  # corrections are clipped to ± this, in logarithms

    def __call__(self, x_FR: Float32Array, kind: str) -> Float64Array:
        """Corrections as logarithms, (rows,), for kernels of ``kind``.

        Features are clipped to four standard deviations.
        """
        index = self.kinds.index(kind)
        gain = (1 + self.first_gain[index]).astype(np.float32)
        first, first_bias = self.first * gain, self.first_bias[index]
        out = np.empty(x_FR.shape[1])
        for start in range(0, len(out), CHUNK):
            z_RF = (x_FR[:, start : start + CHUNK].T - self.mean) / self.scale
            np.clip(z_RF, -4.0, 4.0, out=z_RF)
            hidden = z_RF @ first
            hidden += first_bias
            np.maximum(hidden, hidden * np.float32(SLOPE), out=hidden)
            hidden = hidden @ self.second
            hidden += self.second_bias[index]
            np.maximum(hidden, hidden * np.float32(SLOPE), out=hidden)
            out[start : start + CHUNK] = hidden @ self.last[index] + self.offset[index]
        return np.clip(out, -self.bound, self.bound)

    def arrays(self) -> dict[str, Float32Array]:
        """The arrays of the network, by the names under which they are stored."""
        return {name: getattr(self, name) for name in ARRAYS}


def from_arrays(arrays: Mapping[str, Float32Array], kinds: tuple[str, ...], bound: float) -> Network:
    """Builds the network from its stored arrays, whose weights are in half precision."""
    return Network(kinds=kinds, bound=bound, **{name: arrays[name].astype(np.float32) for name in ARRAYS})
