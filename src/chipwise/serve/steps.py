"""Seconds of whole passes: the sum of their kernels, by what they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.predict.kernels.times import Situation
from chipwise.serve.kernel_times import FIGURES, Call, time_kernels
from chipwise.serve.lowering import lower_pass
from chipwise.serve.setting import Part, Setting, Step

CLASSES = ("matmul", "attention", "experts", "collective", "other")
"""Classes of kernels in a pass: products, attention, mixtures of experts, communication, the rest."""
_CLASS = {
    "matmul": "matmul",
    "grouped_matmul": "experts",
    "experts": "experts",
    "looped_experts": "experts",
    "attention": "attention",
    "latent_attention": "attention",
    "mamba2": "attention",
    "gated_delta": "attention",
    "all_reduce": "collective",
    "all_gather": "collective",
    "reduce_scatter": "collective",
    "all_to_all": "collective",
    "p2p": "collective",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One question: the kernels of ``step`` under ``setting`` on ``device``, for ``rows`` requests at once."""

    setting: Setting
    step: Step
    device: DeviceProfile
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """What a pass takes, kernel by kernel.

    ``figures`` has one row of ``kernel_times.FIGURES`` for each part and request; ``counts`` says how many of each part
    a pass runs, in the row of its class.
    """

    parts: tuple[Part, ...]
    figures: Float64Array  # (FIGURES, parts, requests)
    situations: tuple[Situation, ...]  # one a part
    counts: Float64Array  # (CLASSES, parts)

    @classmethod
    def of(cls, parts: tuple[Part, ...], figures: Float64Array, situations: tuple[Situation, ...]) -> PassTimes:
        """The times of ``parts``."""
        counts = np.zeros((len(CLASSES), len(parts)))
        for p, part in enumerate(parts):
            counts[CLASSES.index(class_of(part.op.kind)), p] = part.count
        return cls(parts=parts, figures=figures, situations=situations, counts=counts)

    @property
    def kernels(self) -> int:
        """Kernels launched in one pass of one request."""
        return sum(part.count for part in self.parts)

    @property
    def kernel_s(self) -> Float64Array:
        """(parts, requests): one launch of each kernel alone."""
        return self.figure("latency_s")

    def figure(self, name: str) -> Float64Array:
        """(parts, requests): one of ``kernel_times.FIGURES``."""
        found: Float64Array = self.figures[FIGURES.index(name)]
        return found

    @property
    def latency_s(self) -> Float64Array:
        """All kernels, one after another."""
        return self.class_s(*CLASSES)

    def class_s(self, *classes: str) -> Float64Array:
        """The kernels of some of ``CLASSES``, as each takes alone."""
        total: Float64Array = self._counts(classes) @ self.kernel_s
        return total

    def busy_s(self, *classes: str, scale: float = 1.0) -> Float64Array:
        """The kernels of some of ``CLASSES`` without their launches, which a captured graph hides; at least the limits.

        What a kernel alone spends before its work (its launch, a separate kernel that quantises) is seen in its floor.
        ``scale`` is what kernels take in serving over the same alone; none is faster than the chip's rates allow.
        """
        limit = np.maximum(self.figure("compute_s"), self.figure("memory_s"))
        total: Float64Array = self._counts(classes) @ np.maximum(
            scale * (self.kernel_s - self.figure("launch_s")), limit
        )
        return total

    def _counts(self, classes: Sequence[str]) -> Float64Array:
        """How many of each part a pass runs; 0 of those in other classes."""
        counts: Float64Array = self.counts[[CLASSES.index(name) for name in classes]].sum(axis=0)
        return counts

    @property
    def log_halfwidth(self) -> Float64Array:
        """Half width of the 90 % interval of the sum, in logarithms, its kernels' errors going together."""
        spread: Float64Array = self.counts.sum(axis=0) @ (self.kernel_s * self.figure("log_halfwidth"))
        return spread / self.latency_s

    @property
    def situation(self) -> Situation:
        """The worst situation among products, attention and experts, which are fitted and take the time.

        A grouped product by itself (latent attention's, of each head) is in no table and does not count.
        """
        order: tuple[Situation, ...] = ("unseen", "sibling", "seen")
        fitted = [
            situation
            for part, situation in zip(self.parts, self.situations, strict=True)
            if class_of(part.op.kind) in ("matmul", "attention", "experts") and part.op.kind != "grouped_matmul"
        ]
        return min(fitted, key=order.index)


def class_of(kind: str) -> str:
    """The class of an operator's kind."""
    return _CLASS.get(kind, "other")


def time_passes(passes: Sequence[Pass], *, fold: str | None = None) -> list[PassTimes]:
    """The times of every pass; kernels that differ only in sizes are priced together.

    Raises:
        Unsupported: A device lacks a rate.
    """
    lowered = [lower_pass(each.setting, each.step) for each in passes]
    calls = [
        Call(op=part.op, device=each.device, stack=each.setting.runtime.stack, rows=each.rows)
        for each, parts in zip(passes, lowered, strict=True)
        for part in parts
    ]
    found = time_kernels(calls, fold=fold)
    answers, column, call = [], 0, 0
    for each, parts in zip(passes, lowered, strict=True):
        width = len(parts) * each.rows
        figures = found.figures[:, column : column + width].reshape(len(FIGURES), len(parts), each.rows)
        answers.append(PassTimes.of(parts, figures, found.situations[call : call + len(parts)]))
        column, call = column + width, call + len(parts)
    return answers
