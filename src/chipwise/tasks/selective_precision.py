"""Formats chosen matrix by matrix, by measured time and loss: a narrow one stays only where the file gets faster.

The choice is by weights, not by nodes of the graph: a matrix has one format wherever it is read. Candidates are timed
in turns with what is kept so far, so that a slow spell of the machine slows both. Ends with FP32 where nothing helps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import Float64Array
from chipwise.core.files import storage
from chipwise.deploy.onnx import export, matrix_names
from chipwise.spec import Design

RUNS = 120  # of each of two files, in turns
FASTER = 0.6  # share of pairs in which a file must be the faster one
LEAST_GAIN = 0.005  # of the seconds of a pass; less is noise
ALLOWED = 0.001  # of what the FP32 file gains, such as its NDCG
Run = Callable[[], object]
Opened = Callable[[Path], Run]
Judged = Callable[[Path], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One matrix in the narrow format, beside what was kept before it."""

    name: str
    seconds_ratio: float  # median over pairs of passes
    loss: float | None  # None where it was not faster, so that nothing was judged
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What was chosen, next to FP32."""

    formats: Mapping[str, str]  # of the matrices that are narrow; all others are FP32
    seconds: float  # median of a pass, timed in turns with FP32
    fp32_seconds: float
    loss: float
    fp32_loss: float
    tried: Sequence[Tried]


def select(
    design: Design,
    weights: Mapping[str, NDArray[Any]],
    folder: Path,
    *,
    opened: Opened,
    judged: Judged,
    form: str = "int8",
    allowed: float = ALLOWED,
    clock: Callable[[], float] = time.perf_counter,
) -> Selection:
    """Tries every matrix in ``form``, the largest first, and keeps those that make passes faster and lose little.

    Args:
        design: The design; its own formats do not count.
        weights: FP32, by the names of the torch module.
        folder: Where files are written and removed again.
        opened: Loads a file and returns what runs one pass of it.
        judged: Loss of a file, of which less is better, as 1 less a gain.
        form: The narrow format.
        allowed: Most share of the FP32 file's gain that all narrow matrices together may lose.
        clock: Seconds.

    Raises:
        Unsupported: A model that has no graph, or a format that has none.
    """
    bare = Design(arch=design.arch)

    def made(formats: Mapping[str, str]) -> Path:
        path = folder / f"selective-{len(formats)}.onnx"
        with storage(path):
            return export(bare, weights, path, formats=formats)

    base = made({})
    try:
        fp32_loss = judged(base)
        worst = fp32_loss + allowed * (1 - fp32_loss)
        kept: dict[str, str] = {}
        loss, tried = fp32_loss, []
        current = opened(base)
        for name in matrix_names(bare, weights):
            path = made(kept | {name: form})
            candidate = opened(path)
            first, second = paired(current, candidate, clock=clock)
            ratio = float(np.median(second / first))
            found = judged(path) if faster(first, second) else None
            good = found is not None and found <= worst
            tried.append(Tried(name=name, seconds_ratio=ratio, loss=found, kept=good))
            if good and found is not None:
                kept[name], loss, current = form, found, candidate
            path.unlink()
        before, after = paired(opened(base), current, clock=clock, runs=2 * RUNS)
        if kept and not faster(before, after):
            kept, loss, after = {}, fp32_loss, before
        return Selection(
            formats=kept,
            seconds=float(np.median(after)),
            fp32_seconds=float(np.median(before)),
            loss=loss,
            fp32_loss=fp32_loss,
            tried=tried,
        )
    finally:
        base.unlink(missing_ok=True)


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
