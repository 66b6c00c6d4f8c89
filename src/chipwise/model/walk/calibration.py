"""Chooses the quantiser for a model, by the loss of the quantised model on calibration data."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.errors import InputError, UnknownName
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantisers import QUANTISERS
from chipwise.model.blocks.quantize import Packing, Quantiser

if TYPE_CHECKING:
    from torch import Tensor, nn

AUTO, LEARNED = "auto", "learned"  # learned: rounds whole models (training/loop/learned_rounding.py)
LEARNED_CPU_S = 60.0  # usual CPU seconds of learned rounding
METHODS = (AUTO, *QUANTISERS)
"""Names of quantisers in options and run files."""
Judge = Callable[[ArchSpec, Mapping[str, AnyArray]], float]
"""Returns the loss of a model with the given weights, on calibration data that no quantiser has used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """What learned rounding needs: the original model, inputs, and the kind of outputs.

    Attributes:
        original: The module whose outputs the rounded model should reproduce.
        batch: Given a batch's number, returns the inputs with which the module is called.
        logits: Whether the outputs are logits.
    """

    original: nn.Module
    batch: Callable[[int], Sequence[Tensor | AnyArray]]
    logits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The quantiser with the least loss, and the loss and time of each quantiser that was tried."""

    method: str
    losses: Mapping[str, float]
    cpu_s: Mapping[str, float]  # for rounding all matrices

    def beside(self, method: str, loss: float, cpu_s: float) -> Choice:
        """The choice after one more quantiser, ``method``, was tried."""
        losses = {**self.losses, method: loss if math.isfinite(loss) else math.inf}
        best = min(losses, key=losses.__getitem__)
        return Choice(method=best, losses=losses, cpu_s={**self.cpu_s, method: cpu_s})

    def text(self) -> str:
        """The choice as text: the quantiser, and the measured loss and time of each quantiser that was tried."""
        if not self.losses:
            return f"{self.method}, without calibration data"
        tried = (f"{name} {loss:.4g} ({self.cpu_s[name]:.2g} CPU-s)" for name, loss in self.losses.items())
        return f"{self.method}; loss measured on calibration data: {', '.join(tried)}"


def restored(design: Design, weights: Mapping[str, AnyArray], packing: Packing) -> tuple[ArchSpec, dict[str, AnyArray]]:
    """Architecture and weights after quantising and dequantising to FP32. As in exported files, the head is untied.

    Raises:
        Unsupported: Weights cannot be rounded to one of the design's formats.
    """
    arch = design.arch.with_tied(False)
    found = dict(weights)
    if arch.head.writes and "head.weight" not in found:
        found["head.weight"] = found["embedding.weight"]
    untied = replace(design, arch=arch)
    for name, value in found.items():
        if (stored := untied.format_of(name)) != "fp32":
            found[name] = packing.pack(name, np.ascontiguousarray(value, np.float32), stored).restored()
    return arch, found


def choose(
    design: Design,
    weights: Mapping[str, AnyArray],
    packing: Packing,
    judge: Judge,
    *,
    among: Sequence[str] = tuple(QUANTISERS),
    clock: Callable[[], float] = time.process_time,
) -> Choice:
    """Rounds ``weights`` with each quantiser and chooses the quantiser with the least loss; on a tie, the first.

    Args:
        design: The model and its formats.
        weights: The model's weights in FP32.
        packing: The inputs of matrices on calibration data, and how int4 values share scales.
        judge: Returns a model's loss on calibration data that ``packing`` does not use.
        among: Names of the quantisers to try, starting with rounding to nearest.
        clock: Returns the CPU time in seconds.
    """
    losses, cpu_s = {}, {}
    for name in among:
        begun = clock()
        arch, rounded = restored(design, weights, replace(packing, quantiser=quantiser(name)))
        cpu_s[name] = clock() - begun
        found = judge(arch, rounded)
        losses[name] = found if math.isfinite(found) else math.inf
    return Choice(method=min(losses, key=losses.__getitem__), losses=losses, cpu_s=cpu_s)


def learning_s(method: str, cpu_s: float | None) -> float:
    """CPU seconds for learned rounding: ``cpu_s`` if given; else the default if ``method`` is ``LEARNED``; else 0.

    Raises:
        UnknownName: There is no such method.
        InputError: ``cpu_s`` is given for a method that does not use it.
    """
    if method not in (known := (*METHODS, LEARNED)):
        raise UnknownName("quantiser", method, known)
    if cpu_s is not None and method not in (AUTO, LEARNED):
        raise InputError(
            f"cpu_seconds (--cpu-seconds) applies only to the methods {LEARNED} and {AUTO}, not to {method}"
        )
    return (LEARNED_CPU_S if method == LEARNED else 0.0) if cpu_s is None else cpu_s


def quantiser(name: str) -> Quantiser:
    """The quantiser with this name.

    Raises:
        UnknownName: There is no such quantiser.
    """
    if name not in QUANTISERS:
        raise UnknownName("quantiser", name, METHODS)
    return QUANTISERS[name]
