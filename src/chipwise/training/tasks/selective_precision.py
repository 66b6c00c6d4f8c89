"""Chooses a format for each matrix by measured time and loss: a narrow format is kept only if it makes the file faster.

Formats belong to matrices, not to nodes of the graph: a matrix has one format wherever it is used. A candidate is timed
in alternation with the best formats so far, so that a slow phase of the machine affects both. If no narrow format makes
the file faster, all matrices stay in FP32.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from chipwise.core.alternation import alternating_s
from chipwise.core.arrays import AnyArray, Float64Array
from chipwise.core.files import storage
from chipwise.deploy.export.onnx import export
from chipwise.model.arch.design import Design
from chipwise.model.arch.formats import by_matrix
from chipwise.model.blocks.quantize import NEAREST, Packing
from chipwise.model.walk.weights import matrices_of

ALL = "all"  # stands for all matrices together
RUNS = 120  # passes of each of two files, in alternation
FASTER = 0.6  # smallest share of pairs in which the faster file must win
LEAST_GAIN = 0.005  # smallest gain in seconds per pass, as a share; smaller ones are noise
ALLOWED = 0.001  # loss allowed, as a share of the FP32 file's quality, such as its NDCG
Run = Callable[[], object]
Opened = Callable[[Path], Run]
LossOfFile = Callable[[Design, Path], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A trial of a narrow format for one or all matrices, compared with the best formats so far."""

    name: str  # name of the matrix in ``model/arch/formats.py``, or ``ALL``
    weight_format: str
    seconds_ratio: float  # median over pairs of passes, relative to the best formats so far
    loss: float | None  # None if the file was not faster and therefore not evaluated
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Result: the chosen formats, compared with FP32."""

    weights: str  # name of the formats; ``fp32`` if no narrow format helps
    fused: tuple[str, ...]  # fused operators, the same in all files
    seconds: float  # median per pass, timed in alternation with FP32
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
    packing: Packing = NEAREST,
    clock: Callable[[], float] = time.perf_counter,
) -> Selection:
    """Tries each narrow format for all matrices at once, then for one matrix at a time, largest matrix first.

    A format is kept if the file gets faster and loses little quality.

    Args:
        base: The model and its fused operators; its formats are ignored.
        weights: FP32 weights by the names of the torch module.
        folder: Folder for temporary files.
        opened: Loads a file, and returns a function that runs one pass.
        judged: Returns the loss of a design and its file, such as 1 minus NDCG.
        forms: The narrow formats.
        allowed: Largest share of the FP32 file's quality (1 minus loss) that all narrow matrices together may lose.
        packing: How narrow matrices are rounded.
        clock: Returns the time in seconds.

    Raises:
        Unsupported: The model or a format cannot be exported.
    """

    def design(formats: Mapping[str, str]) -> Design:
        return replace(base, weights=str(by_matrix(formats, len(base.arch.layers))))

    def made(formats: Mapping[str, str], name: str) -> Path:
        path = folder / f"selective-{name}.onnx"
        with storage(path):
            return export(design(formats), weights, path, packing=packing)

    plain = made({}, "fp32")
    try:
        fp32_loss = judged(design({}), plain)
        worst = fp32_loss + allowed * (1 - fp32_loss)
        kept: dict[str, str] = {}
        loss, tried = fp32_loss, []
        current = opened(plain)
        names = matrices_of(base.arch)
        alone = itertools.product(names, (*forms, "fp32"))
        for name, weight_format in (*itertools.product((ALL,), forms), *alone):
            formats = dict.fromkeys(names, weight_format) if name == ALL else kept | {name: weight_format}
            if kept.get(name, "fp32") == weight_format:
                continue
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
        if not kept or not faster(before, after):  # ``before`` is FP32 itself
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
    """Times two functions in alternation, ``runs`` passes each; returns their seconds as two arrays (runs,)."""
    return alternating_s(lambda i: first(), lambda i: second(), clock=clock, fewest=runs, most=runs)


def faster(first: Float64Array, second: Float64Array) -> bool:
    """Whether the second of two files is faster, by paired times: in most pairs, and by more than the noise."""
    wins = float(np.mean(second < first))
    return wins >= FASTER and float(np.median(second / first)) <= 1 - LEAST_GAIN
