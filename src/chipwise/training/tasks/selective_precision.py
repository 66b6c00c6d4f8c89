"""Formats chosen matrix by matrix, by measured time and loss: a narrow one stays only where the file gets faster.

The choice is by weights, not by nodes of the graph: a matrix has one format wherever it is read. Candidates are timed
in turns with what is kept so far, so that a slow spell of the machine slows both. Ends with FP32 where nothing helps.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from chipwise.core.arrays import AnyArray, Float64Array
from chipwise.core.files import storage
from chipwise.deploy.export.onnx import export
from chipwise.model.arch.design import Design
from chipwise.model.arch.formats import by_matrix
from chipwise.model.walk.weights import matrices_of

RUNS = 120  # of each of two files, in turns
FASTER = 0.6  # share of pairs in which a file must be the faster one
LEAST_GAIN = 0.005  # of the seconds of a pass; less is noise
ALLOWED = 0.001  # of what the FP32 file gains, such as its NDCG
Run = Callable[[], object]
Opened = Callable[[Path], Run]
LossOfFile = Callable[[Design, Path], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One matrix in a narrow format, compared with the best formats so far."""

    name: str  # as ``model/arch/formats.py`` calls it
    weight_format: str
    seconds_ratio: float  # median over pairs of passes
    loss: float | None  # None if it was not faster, so that nothing was evaluated
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The chosen formats, next to FP32."""

    weights: str  # the text that names the formats; ``fp32`` where nothing narrow is worth it
    fused: tuple[str, ...]  # operators that are one, in all files alike
    seconds: float  # median of a pass, timed in turns with FP32
    fp32_seconds: float
    loss: float
    fp32_loss: float
    tried: Sequence[Tried]


def select(
    base: Design,
    weights: Mapping[str, AnyArray],
    folder: Path,
    *,
    opened: Opened,
    judged: LossOfFile,
    forms: Sequence[str] = ("int8",),
    allowed: float = ALLOWED,
    clock: Callable[[], float] = time.perf_counter,
) -> Selection:
    """Tries every matrix in the narrow ``forms``, the largest first; keeps what is faster and loses little.

    Args:
        base: The model, and which of its operators are fused; its own formats do not count.
        weights: FP32, by the names of the torch module.
        folder: Where files are written and removed again.
        opened: Loads a file and returns what runs one pass of it.
        evaluated: Loss of a design and its file, of which less is better, as 1 less a gain.
        forms: The narrow formats.
        allowed: Most share of the FP32 file's gain that all narrow matrices together may lose.
        clock: Seconds.

    Raises:
        Unsupported: A model that has no graph, or a format that has none.
    """

    def design(formats: Mapping[str, str]) -> Design:
        return replace(base, weights=str(by_matrix(formats, len(base.arch.layers))))

    def made(formats: Mapping[str, str], name: str) -> Path:
        path = folder / f"selective-{name}.onnx"
        with storage(path):
            return export(design(formats), weights, path)

    plain = made({}, "fp32")
    try:
        fp32_loss = judged(design({}), plain)
        worst = fp32_loss + allowed * (1 - fp32_loss)
        kept: dict[str, str] = {}
        loss, tried = fp32_loss, []
        current = opened(plain)
        for name, weight_format in itertools.product(matrices_of(base.arch), forms):
            formats = kept | {name: weight_format}
            path = made(formats, "tried")
            candidate = opened(path)
            first, second = paired(current, candidate, clock=clock)
            ratio = float(np.median(second / first))
            found = judged(design(formats), path) if faster(first, second) else None
            good = found is not None and found <= worst
            tried.append(Tried(name=name, weight_format=weight_format, seconds_ratio=ratio, loss=found, kept=good))
            if good and found is not None:
                kept, loss, current = formats, found, candidate
            path.unlink()
        before, after = paired(opened(plain), current, clock=clock, runs=2 * RUNS)
        if not kept or not faster(before, after):  # FP32 itself
            kept, loss, after = {}, fp32_loss, before
        return Selection(
            weights=design(kept).weights,
            fused=base.fused,
            seconds=float(np.median(after)),
            fp32_seconds=float(np.median(before)),
            loss=loss,
            fp32_loss=fp32_loss,
            tried=tried,
        )
    finally:
        plain.unlink(missing_ok=True)


def paired(
    first: Run, second: Run, *, clock: Callable[[], float], runs: int = RUNS
) -> tuple[Float64Array, Float64Array]:
    """Seconds of ``runs`` passes of each, in turns, each (runs,); the one that begins changes with every pair."""
    for run in (first, second) * 3:
        run()
    seconds = np.empty((2, runs))
    for i in range(runs):
        for which in (i % 2, 1 - i % 2):
            begun = clock()
            (first, second)[which]()
            seconds[which, i] = clock() - begun
    return seconds[0], seconds[1]


def faster(first: Float64Array, second: Float64Array) -> bool:
    """Whether the second of two files, timed in pairs, is faster: in most pairs, and by more than noise."""
    wins = float(np.mean(second < first))
    return wins >= FASTER and float(np.median(second / first)) <= 1 - LEAST_GAIN
