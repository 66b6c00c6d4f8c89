"""Computes a quantised file's loss: how far its outputs are from the original's, or how much of a metric is lost.

The loss of an output is the relative error ‖y − y₀‖ / ‖y₀‖ over all samples. For probabilities (rows that sum to 1) it
is the Kullback-Leibler divergence in nats, and for integers the share of values that differ. A file's loss is that of
its worst output. With a user's metric, the loss is instead the share of the original's score that is lost.

Each loss has a one-sided upper bound, which holds in 19 of 20 cases: the loss plus 1.645 standard errors by the
delete-a-group jackknife (Shao and Tu 1995, The Jackknife and Bootstrap, section 2.3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chipwise.core.arrays import AnyArray, Float64Array
from chipwise.core.python_files import run_file, users_code
from chipwise.core.statistics import Z90
from chipwise.deploy.graphs.inputs import Samples
from chipwise.errors import InputError, MeasurementError, SpecError

Metric = Callable[[dict[str, list[AnyArray]], dict[str, list[AnyArray]]], float]
GROUPS = 8
LEAST_Q = 1e-9  # smaller probabilities count as this one, so that logarithms are finite
SUM_OF_ROW = 1e-3  # rows count as probabilities if their sum deviates from 1 by at most this


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A loss, as a share or (for probabilities) in nats, with its upper bound."""

    value: float
    upper: float


class Judge:
    """Compares outputs of a file with those of the original.

    Args:
        original: The original's outputs, one mapping for each sample.
        samples: The data, which the metric receives.
        metric: The user's metric, for which higher is better. None: outputs are compared directly.

    Raises:
        MeasurementError: The original's outputs are not finite.
    """

    def __init__(self, original: Mapping[int, Mapping[str, AnyArray]], samples: Samples, metric: Metric | None) -> None:
        self._original, self._samples, self._metric = original, samples, metric
        for i, each in original.items():
            for name, array in each.items():
                if array.dtype.kind == "f" and not np.isfinite(array).all():
                    raise MeasurementError(f"the original's output {name!r} is not finite for sample {i}")
        first = next(iter(original.values()))
        self.names = tuple(first)
        self._kinds = {name: kind_of([each[name] for each in original.values()]) for name in self.names}

    @property
    def unit(self) -> str:
        """Describes in words what the loss measures."""
        if self._metric is not None:
            return "of the metric"
        kinds = sorted(set(self._kinds.values()))
        words = {"error": "relative error", "nats": "divergence in nats", "share": "share of values that differ"}
        return " or ".join(words[kind] for kind in kinds)

    def energies(self, found: Mapping[int, Mapping[str, AnyArray]]) -> Float64Array:
        """Numerator and denominator of each output's loss for each sample, (samples, outputs, 2)."""
        rows = [
            [self._energy(name, self._original[i][name], each[name]) for name in self.names]
            for i, each in found.items()
        ]
        return np.array(rows, np.float64)

    def _energy(self, name: str, wanted: AnyArray, given: AnyArray) -> tuple[float, float]:
        if wanted.shape != given.shape:
            return math.inf, 1.0
        kind = self._kinds[name]
        if kind == "share":
            return float(np.sum(wanted != given)), float(wanted.size)
        a, b = wanted.astype(np.float64), given.astype(np.float64)
        if not np.isfinite(b).all():
            return math.inf, 1.0
        if kind == "nats":
            logs = np.log(np.maximum(a, LEAST_Q) / np.maximum(b, LEAST_Q))
            return float(max(0.0, np.sum(a * logs - a + b))), float(a.size / a.shape[-1])
        return float(np.sum((a - b) ** 2)), float(np.sum(a**2))

    def additive(self, found: Mapping[int, Mapping[str, AnyArray]]) -> dict[str, float]:
        """Each output's loss, in a form that is nearly additive over operators: relative errors are squared."""
        above, below = np.moveaxis(self.energies(found).sum(axis=0), -1, 0)
        return dict(zip(self.names, map(float, above / np.maximum(below, 1e-300)), strict=True))

    def loss(self, found: Mapping[int, Mapping[str, AnyArray]]) -> Loss:
        """The loss over the samples in ``found``, with its upper bound; infinite if an output is not finite."""
        energies = self.energies(found)
        if not np.isfinite(energies).all():
            return Loss(value=math.inf, upper=math.inf)
        numbers = list(found)
        groups = min(GROUPS, len(numbers))
        which = np.arange(len(numbers)) % groups

        def over(kept: AnyArray) -> float:
            if self._metric is None:
                return self._of(energies[kept].sum(axis=0))
            chosen = [numbers[i] for i in np.flatnonzero(kept)]
            before, after = (self._score(each, chosen) for each in (self._original, found))
            return (before - after) / abs(before)

        value = over(which >= 0)
        if groups < 2:
            return Loss(value=value, upper=value)
        others = np.array([over(which != group) for group in range(groups)])
        error = math.sqrt((groups - 1) / groups * float(np.sum((others - others.mean()) ** 2)))
        return Loss(value=value, upper=value + Z90 * error)

    def _of(self, sums: Float64Array) -> float:
        shares = sums[:, 0] / np.maximum(sums[:, 1], 1e-300)
        worst = [
            math.sqrt(x) if self._kinds[name] == "error" else x for name, x in zip(self.names, shares, strict=True)
        ]
        return float(max(worst))

    def _score(self, outputs: Mapping[int, Mapping[str, AnyArray]], chosen: Sequence[int]) -> float:
        given = {name: [outputs[i][name] for i in chosen] for name in self.names}
        data = {name: [self._samples.feeds[i][name] for i in chosen] for name in self._samples.feeds[0]}
        data |= {name: [array[i] for i in chosen] for name, array in self._samples.extra.items()}
        if self._metric is None:
            raise MeasurementError("there is no metric to compute a score with")
        try:
            score = float(self._metric(given, data))
        except Exception as error:  # the metric is the user's code
            raise InputError(f"the metric failed: {type(error).__name__}: {error}") from error
        if outputs is self._original and not (math.isfinite(score) and score):
            raise InputError(f"the metric returns {score} for the original model; it must be finite and not 0")
        return score if math.isfinite(score) else -math.inf


def kind_of(arrays: Sequence[AnyArray]) -> str:
    """Kind of an output's loss: ``nats`` for probabilities, ``share`` for integers, else ``error``."""
    if arrays[0].dtype.kind != "f":
        return "share"
    rows = [array for array in arrays if array.ndim and array.shape[-1] > 1 and array.min() >= 0]
    sums = [np.abs(array.sum(axis=-1) - 1).max() < SUM_OF_ROW for array in rows]
    return "nats" if len(rows) == len(arrays) and all(sums) else "error"


def load_metric(text: str) -> Metric:
    """Loads the function that a text such as ``metric.py:score`` names, by running that Python file.

    Raises:
        SpecError: The file or the function does not exist, or the file fails.
    """
    file, _, name = text.rpartition(":")
    if not file or not name.isidentifier():
        raise SpecError(f"{text!r} is not a file and a function; write both, as in metric.py:score", field="--metric")
    with users_code(Path(file).name):
        module = run_file(Path(file))
    if module is None:
        raise SpecError("there is no such Python file", file=file)
    found = getattr(module, name, None)
    if not callable(found):
        raise SpecError(f"has no function {name}", file=file)
    metric: Metric = found
    return metric
