"""Corrects the predicted times of passes with a taught profile, which holds measurements from ``chipwise teach``."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.hardware.taught import Teaching
from chipwise.predict.kernels.local import FEW_ROWS, is_expert, rows_of
from chipwise.predict.served.kernel_times import FIGURES
from chipwise.predict.served.memory import HEAD
from chipwise.predict.served.setting import PlacedOp, Setting
from chipwise.predict.served.steps import PassTimes, class_of
from chipwise.predict.served.taught_pass import GROUPS, TERMS, PassSums, PassTimesTaught, label_names, taught_seconds

FEW = {"matmul": "products", "attention": "attention", "experts": "experts"}


def pass_sums(times: PassTimes, seconds: Float64Array, setting: Setting, phase: str, *, variant: str = "") -> PassSums:
    """Splits the time of passes by group of operators; the groups add up to ``seconds``.

    Args:
        times: The kernels of the passes.
        seconds: Seconds of the passes predicted from the data sheet, including host time.
        setting: The runtime and the formats.
        phase: ``prefill`` or ``decode``.
        variant: The variant (backend, threads, …) that the profile predicts.
    """
    n = len(seconds)
    counts = np.array([part.count for part in times.parts], float)[:, None]
    latency, launch, compute, memory = (
        counts * each for each in (times.kernel_s, *map(times.figure, ("launch_s", "compute_s", "memory_s")))
    )
    launch = np.minimum(launch, latency)
    terms = np.zeros((n, len(TERMS)))
    head = np.zeros(n)
    attention = np.zeros(n)
    lookups = np.zeros(n)
    for p, part in enumerate(times.parts):
        work = latency[p] - launch[p]
        few = np.broadcast_to(rows_of(part.op) <= FEW_ROWS, n)
        for chosen, rows in ((few, "few"), (~few, "many")):
            terms[chosen, GROUPS.index(group_of(part, rows))] += work[chosen]
            terms[chosen, TERMS.index(f"arithmetic of {rows} rows")] += compute[p, chosen]
        if part.place == HEAD:
            head += latency[p]
        if class_of(part.op.kind) == "attention":
            attention += latency[p]
        if class_of(part.op.kind) == "matmul":
            lookups = np.maximum(lookups, np.broadcast_to(rows_of(part.op), n))
    terms[:, GROUPS.index("launches")] = launch.sum(axis=0)
    kernels_s = terms[:, : len(GROUPS)].sum(axis=1)
    host = seconds - kernels_s
    terms[:, : len(GROUPS)] *= np.where(host < 0, seconds / kernels_s, 1.0)[:, None]
    terms[:, GROUPS.index("host")] = np.maximum(host, 0.0)
    terms[:, TERMS.index("bytes")] = memory.sum(axis=0)
    terms[:, TERMS.index("kernels")] = times.kernels
    terms[:, TERMS.index("passes")] = 1.0
    figures = np.stack(
        [
            np.log(np.maximum(compute.sum(axis=0), 1e-12)),
            np.log(np.maximum(memory.sum(axis=0), 1e-12)),
            np.full(n, np.log(times.kernels)),
            np.log(np.maximum(lookups, 1.0)),
            attention / latency.sum(axis=0),
            head / latency.sum(axis=0),
        ],
        axis=1,
    )
    labels = label_names(phase, setting.runtime.name, setting.formats.experts, variant)
    return PassSums(terms=terms, figures=figures, labels=labels)


def group_of(part: PlacedOp, rows: str) -> str:
    """The group of ``GROUPS`` to which a kernel belongs; ``rows`` is ``few`` or ``many``."""
    kind = class_of(part.op.kind)
    if part.place == HEAD:
        return "head"
    if kind == "collective":
        return "communication"
    if kind in FEW:
        return f"{'experts' if is_expert(part.op) else FEW[kind]} of {rows} rows"
    return "streams"


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """Passes corrected by the profile. The time of each kernel is scaled by the factor of its group."""

    found: PassTimesTaught
    times: PassTimes


def corrected(teaching: Teaching, times: PassTimes, seconds: Float64Array, setting: Setting, phase: str) -> Corrected:
    """Corrects passes with the profile ``teaching``; ``seconds`` are their times predicted from the data sheet."""
    sums = pass_sums(times, seconds, setting, phase, variant=teaching.variant)
    found = taught_seconds(teaching, sums)
    return Corrected(found=found, times=_grown(times, found))


def _grown(times: PassTimes, found: PassTimesTaught) -> PassTimes:
    """Scales each kernel's time by its group's factor, and adds the extra costs per kernel, per operation and per byte.

    The limits by computing and by memory keep the data sheet's values.
    """
    figures = times.figures.copy()
    launch, latency, read = (FIGURES.index(name) for name in ("launch_s", "latency_s", "reading_s"))
    n = figures.shape[2]
    launch_factor, kernel_s, moved = (found.factors[:, TERMS.index(name)] for name in ("launches", "kernels", "bytes"))
    compute, memory = (times.figure(name) for name in ("compute_s", "memory_s"))
    for p, part in enumerate(times.parts):
        few = np.broadcast_to(rows_of(part.op) <= FEW_ROWS, n)
        factor, done = (
            np.where(few, *(found.factors[:, TERMS.index(name.format(rows))] for rows in ("few", "many")))
            for name in (group_of(part, "{}"), "arithmetic of {} rows")
        )
        launched = np.minimum(figures[launch, p], figures[latency, p])
        work = factor * (figures[latency, p] - launched) + done * compute[p] + moved * memory[p]
        figures[launch, p] = launch_factor * launched + kernel_s
        figures[latency, p] = work + figures[launch, p]
        figures[read, p] *= factor
    return replace(times, figures=figures)
