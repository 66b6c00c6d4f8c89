"""Times of whole passes: sums over their kernels, by class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.predict.kernels import caches
from chipwise.predict.kernels.times import Situation
from chipwise.predict.served.kernel_times import FIGURES, Call, time_kernels
from chipwise.predict.served.lowering import lower_pass
from chipwise.predict.served.setting import PlacedOp, Setting, Step

CLASSES = ("matmul", "attention", "experts", "collective", "other")
"""Classes of kernels: matrix products, attention, mixtures of experts, communication, and all others."""
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
    """A pass whose time is predicted: the kernels of ``step`` in ``setting`` on ``device``.

    The sizes in ``step`` are numbers or arrays with one value for each of ``rows`` requests.
    """

    setting: Setting
    step: Step
    device: DeviceProfile
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """Times of a pass, kernel by kernel.

    ``figures`` has the values of ``kernel_times.FIGURES`` for each operator and request, if all bytes come from memory.
    ``counts`` says how often a pass runs each operator, in the row of the operator's class. ``saved`` is, for each
    request, the share of the time spent waiting for memory that caches save.
    """

    parts: tuple[PlacedOp, ...]
    figures: Float64Array  # (FIGURES, parts, requests)
    situations: tuple[Situation, ...]  # one per part
    counts: Float64Array  # (CLASSES, parts)
    saved: Float64Array | float = 0.0  # (requests,)

    @classmethod
    def of(cls, parts: tuple[PlacedOp, ...], figures: Float64Array, situations: tuple[Situation, ...]) -> PassTimes:
        """The times of the operators ``parts``, if all bytes come from memory."""
        counts = np.zeros((len(CLASSES), len(parts)))
        for p, part in enumerate(parts):
            counts[CLASSES.index(class_of(part.op.kind)), p] = part.count
        return cls(parts=parts, figures=figures, situations=situations, counts=counts)

    @property
    def kernels(self) -> int:
        """Number of kernels that one pass launches."""
        return sum(part.count for part in self.parts)

    @property
    def kernel_s(self) -> Float64Array:
        """Seconds of one call of each kernel, timed alone, (parts, requests)."""
        found: Float64Array = self.figure("latency_s") - self.saved * self.figure("reading_s")
        return found

    @property
    def reading_s(self) -> Float64Array:
        """Seconds for which a pass would wait for memory if no cache kept its bytes, (requests,)."""
        found: Float64Array = self.counts.sum(axis=0) @ self.figure("reading_s")
        return found

    @property
    def memory_s(self) -> Float64Array:
        """Bytes of all kernels of a pass, divided by the memory bandwidth, (requests,)."""
        found: Float64Array = self.counts.sum(axis=0) @ self.figure("memory_s")
        return found

    def figure(self, name: str) -> Float64Array:
        """One row of ``kernel_times.FIGURES``, (parts, requests)."""
        found: Float64Array = self.figures[FIGURES.index(name)]
        return found

    @property
    def latency_s(self) -> Float64Array:
        """Seconds of all kernels of a pass, which run one after another."""
        return self.class_s(*CLASSES)

    def class_s(self, *classes: str) -> Float64Array:
        """Total seconds of the kernels of some of ``CLASSES``, each timed alone."""
        total: Float64Array = self._counts(classes) @ self.kernel_s
        return total

    def busy_s(self, *classes: str, scale: float = 1.0) -> Float64Array:
        """Seconds of the kernels of some of ``CLASSES`` without their launches, which captured graphs hide.

        ``scale`` is a kernel's time in serving divided by its time when measured alone. No kernel is faster than the
        chip's rates allow, unless a cache keeps its bytes.
        """
        limit = np.maximum(self.figure("compute_s"), self.figure("memory_s"))
        alone_s = np.maximum(scale * (self.figure("latency_s") - self.figure("launch_s")), limit)
        total: Float64Array = self._counts(classes) @ (alone_s - self.saved * self.figure("reading_s"))
        return total

    def _counts(self, classes: Sequence[str]) -> Float64Array:
        """How often a pass runs each operator of the named classes; 0 for operators of other classes."""
        counts: Float64Array = self.counts[[CLASSES.index(name) for name in classes]].sum(axis=0)
        return counts

    @property
    def log_halfwidth(self) -> Float64Array:
        """Log half-width of the 90 % interval of ``latency_s``, if the errors of all kernels are fully correlated."""
        spread: Float64Array = self.counts.sum(axis=0) @ (self.kernel_s * self.figure("log_halfwidth"))
        return spread / self.latency_s

    @property
    def situation(self) -> Situation:
        """The worst situation (seen, sibling, unseen) among matrix products, attention and experts.

        These kernels dominate the time. Grouped matrix products for the heads of latent attention were never measured
        and do not count.
        """
        order: tuple[Situation, ...] = ("unseen", "sibling", "seen")
        fitted = [
            situation
            for part, situation in zip(self.parts, self.situations, strict=True)
            if class_of(part.op.kind) in ("matmul", "attention", "experts") and part.op.kind != "grouped_matmul"
        ]
        return min(fitted, key=order.index)


def class_of(kind: str) -> str:
    """The class of ``CLASSES`` to which an operator of this kind belongs."""
    return _CLASS.get(kind, "other")


def time_passes(passes: Sequence[Pass], *, fold: str | None = None) -> list[PassTimes]:
    """Predicts the times of passes. Kernels that differ only in their sizes are evaluated together.

    Raises:
        Unsupported: A device has no rate for a kernel.
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
        times = PassTimes.of(parts, figures, found.situations[call : call + len(parts)])
        saved = caches.saved_share(times.memory_s, each.device, each.setting.runtime.stack)
        answers.append(replace(times, saved=saved))
        column, call = column + width, call + len(parts)
    return answers
