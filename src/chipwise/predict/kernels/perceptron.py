"""A plain multilayer perceptron in numpy that corrects physical formulas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import Float32Array, Float64Array

BLOCK_ROWS = 4096  # rows evaluated at once, so that activations stay in the cache
LAYERS = ("w0", "w1", "w2", "w3", "w4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Perceptron:
    """A network over standardised inputs, whose hidden layers use x·sigmoid(x). Its output is clipped to ±bound.

    Inputs are clipped to their range in the fit.
    """

    mean: Float32Array  # (inputs,)
    scale: Float32Array  # (inputs,)
    low: Float32Array  # (inputs,) least value seen
    high: Float32Array  # (inputs,) greatest value seen
    layers: tuple[Float32Array, ...]  # (inputs + 1, outputs) each, the last row the bias
    bound: float

    def __call__(self, inputs: Float32Array) -> Float64Array:
        """The output for each row of inputs; (rows, inputs) -> (rows,)."""
        answers = np.empty(len(inputs), dtype=np.float64)
        for start in range(0, len(inputs), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            x = (np.clip(inputs[rows], self.low, self.high) - self.mean) / self.scale
            for layer in self.layers[:-1]:
                x = x @ layer[:-1] + layer[-1]
                x /= 1 + np.exp(-np.clip(x, -30, 30))
            last = self.layers[-1]
            answers[rows] = (x @ last[:-1] + last[-1])[:, 0]
        return np.clip(answers, -self.bound, self.bound)

    def arrays(self, name: str) -> dict[str, npt.NDArray[np.generic]]:
        """Arrays to store under ``name/…``: ranges in single precision, weights in half precision."""
        exact = {part: getattr(self, part) for part in ("mean", "scale", "low", "high")}
        weights = {part: layer.astype(np.float16) for part, layer in zip(LAYERS, self.layers, strict=False)}
        return {f"{name}/{part}": array for part, array in (exact | weights).items()}

    @classmethod
    def of(cls, arrays: Mapping[str, npt.NDArray[np.generic]], name: str, *, bound: float) -> Perceptron:
        """Reads the network stored in ``arrays`` under ``name``."""
        parts = {part: arrays[f"{name}/{part}"].astype(np.float32) for part in ("mean", "scale", "low", "high")}
        layers = tuple(arrays[f"{name}/{part}"].astype(np.float32) for part in LAYERS if f"{name}/{part}" in arrays)
        return cls(layers=layers, bound=bound, **parts)
