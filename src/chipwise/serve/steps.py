"""Seconds of whole passes: the sum of their kernels, by what they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chipwise.hardware.datasheet import DeviceProfile
from chipwise.predict.kernels import KernelTimes
from chipwise.predict.kernels.times import Situation
from chipwise.serve.lowering import lower_pass
from chipwise.serve.pricing import Call, price
from chipwise.serve.setting import Part, Setting, Step

Array = npt.NDArray[np.float64]
CLASSES = ("matmul", "attention", "experts", "collective", "other")
"""What kernels are told apart by in a pass: products, attention, mixtures of experts, communication, the rest."""
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
    """What a pass takes, kernel by kernel. Arrays have one value a request."""

    parts: tuple[Part, ...]
    times: tuple[KernelTimes, ...]

    @property
    def kernels(self) -> int:
        """Kernels launched in one pass of one request."""
        return sum(part.count for part in self.parts)

    @property
    def latency_s(self) -> Array:
        """All kernels, one after another."""
        return self.class_s(*CLASSES)

    def class_s(self, *classes: str) -> Array:
        """The kernels of some of ``CLASSES``, as each takes alone."""
        total = np.zeros_like(self.times[0].latency_s)
        for part, times in zip(self.parts, self.times, strict=True):
            if class_of(part.op.kind) in classes:
                total = total + part.count * times.latency_s
        return total

    def busy_s(self, *classes: str) -> Array:
        """The kernels of some of ``CLASSES`` without their launches, which a captured graph hides; at least the limits.

        What a kernel alone spends before its work (its launch, a separate kernel that quantises) is seen in its floor.
        """
        total = np.zeros_like(self.times[0].latency_s)
        for part, times in zip(self.parts, self.times, strict=True):
            if class_of(part.op.kind) in classes:
                limit = np.maximum(times.compute_s, times.memory_s)
                total = total + part.count * np.maximum(times.latency_s - times.launch_s, limit)
        return total

    @property
    def log_halfwidth(self) -> Array:
        """Half width of the 90 % interval of the sum, in logarithms, its kernels' errors going together."""
        spread = sum(
            part.count * times.latency_s * times.log_halfwidth
            for part, times in zip(self.parts, self.times, strict=True)
        )
        result: Array = np.asarray(spread) / self.latency_s
        return result

    @property
    def situation(self) -> Situation:
        """The worst situation among products, attention and experts, which are fitted and take the time.

        A grouped product by itself (latent attention's, of each head) is in no table and does not count.
        """
        order: tuple[Situation, ...] = ("unseen", "sibling", "seen")
        fitted = [
            times.situation
            for part, times in zip(self.parts, self.times, strict=True)
            if class_of(part.op.kind) in ("matmul", "attention", "experts") and part.op.kind != "grouped_matmul"
        ]
        return min(fitted, key=order.index)


def class_of(kind: str) -> str:
    """The class of an operator's kind."""
    return _CLASS.get(kind, "other")


def price_passes(passes: Sequence[Pass], *, fold: str | None = None) -> list[PassTimes]:
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
    times = iter(price(calls, fold=fold))
    return [PassTimes(parts=parts, times=tuple(next(times) for _ in parts)) for parts in lowered]
