"""What measured models teach a profile: factors of a pass's parts, the smooth rest, tails, memory, and honest errors.

The profile's rates of nodes stay as calibration found them; everything here is fitted to whole models, so it serves
calibration's own (with few models) and those measured later (with many).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from chipwise.blocks.lowering import lower
from chipwise.core.arrays import Float64Array
from chipwise.core.statistics import kendall_tau
from chipwise.cost.memory import MemoryParts, memory_parts
from chipwise.cost.pricing import PARTS, anatomy, combine, total_price
from chipwise.cost.residual import MOST_POINTS, NOISE, factors, smooth
from chipwise.hardware.device import CheckError, Lessons, MachineProfile, MemoryCost, Residual, Tail
from chipwise.ops import Phase, Workload
from chipwise.profile.fit import fit_relative
from chipwise.profile.measurement import Measurement
from chipwise.profile.samples import WEIGHTS
from chipwise.spec import Design

HELD = 0.2  # standard deviation of a part's own factor about the common one
COMMON = 0.5  # standard deviation of the common factor about 1
LEAST_FACTOR, MOST_FACTOR = 0.25, 4.0
ROUNDS = 4  # of weighting disturbed models down
LEAST_MODELS = 6  # for a smooth rest; fewer give factors alone


class Observed(Protocol):
    """One measured model. Seconds are on the calibration's footing."""

    @property
    def design(self) -> Design:
        """What was measured."""
        ...

    @property
    def workload(self) -> Workload:
        """Under which requests."""
        ...

    def seconds(self, phase: Phase, share: float) -> float:
        """The percentile ``share`` of a pass, seconds."""
        ...

    @property
    def peak_memory_bytes(self) -> float | None:
        """Most resident memory, if it could be read."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A measured design, its latencies on the calibration's footing. See :class:`Observed`."""

    design: Design
    measured: Measurement

    @property
    def workload(self) -> Workload:
        """Under which requests."""
        return self.measured.workload

    @property
    def peak_memory_bytes(self) -> float | None:
        """Most resident memory, if it could be read."""
        return self.measured.peak_memory_bytes

    def seconds(self, phase: Phase, share: float) -> float:
        """The percentile ``share`` of a pass, without the machine's drift since calibration."""
        return self.measured.settled(f"{'ttft' if phase is Phase.PREFILL else 'tpot'}_p{share * 100:.0f}")


@dataclass(frozen=True)
class Table:
    """Observed models of one phase as arrays of n rows, under one profile's rates."""

    parts: Float64Array  # (n, parts) seconds
    figures: Float64Array  # (n, figures)
    median_s: Float64Array  # (n,) measured
    p99_s: Float64Array  # (n,) measured

    def __getitem__(self, rows: Any) -> Table:
        return Table(self.parts[rows], self.figures[rows], self.median_s[rows], self.p99_s[rows])

    def __add__(self, other: Table) -> Table:
        mine, theirs = ((table.parts, table.figures, table.median_s, table.p99_s) for table in (self, other))
        return Table(*(np.concatenate(pair) for pair in zip(mine, theirs, strict=True)))

    def lessons(self) -> Lessons:
        """As a profile keeps it."""
        return Lessons(
            parts=tuple(map(tuple, self.parts.tolist())),
            figures=tuple(map(tuple, self.figures.tolist())),
            median_s=tuple(self.median_s.tolist()),
            p99_s=tuple(self.p99_s.tolist()),
        )

    @classmethod
    def of(cls, lessons: Lessons) -> Table:
        """What :meth:`lessons` gave."""
        columns = (lessons.parts, lessons.figures, lessons.median_s, lessons.p99_s)
        return cls(*(np.array(column, np.float64) for column in columns))


def tabulate(profile: MachineProfile, observed: Sequence[Observed], phase: Phase) -> Table:
    """The models' passes, priced by the profile's own rates."""
    rows = []
    for item in observed:
        price = total_price((placed.op for placed in lower(item.design, item.workload, phase)), profile)
        logits = item.workload.batch * item.design.arch.vocab_size
        priced = anatomy(price, profile, phase, logits=logits)
        rows.append((*priced, item.seconds(phase, 0.5), item.seconds(phase, 0.99)))
    return Table(*(np.array(column, np.float64) for column in zip(*rows, strict=True)))


def fit_residual(table: Table) -> Residual:
    """Factors and smooth rest that make the rates agree with the measured medians, in relative terms.

    Each part's factor is 1 plus what all parts share plus its own, both with Gaussian beliefs about 0; models that stay
    far off (a disturbed measurement) are weighted down.
    """
    total = table.parts.sum(axis=1)
    shares = table.parts / total[:, None]
    error = table.median_s / total - 1
    rows = np.hstack([shares, np.ones((len(error), 1))])
    belief = NOISE**2 * np.diag([HELD**-2] * shares.shape[1] + [COMMON**-2])
    trust = np.ones(len(error))
    for _ in range(ROUNDS):
        weighted = rows * trust[:, None]
        change = np.linalg.solve(weighted.T @ rows + belief, weighted.T @ error)
        left = np.abs(error - rows @ change)
        trust = 1 / np.maximum(1.0, left / (2 * max(float(np.median(left)), 0.01)))
    scales = np.clip(1 + change[:-1] + change[-1], LEAST_FACTOR, MOST_FACTOR)
    named = {name: float(scale) for name, scale in zip(PARTS, scales, strict=True)}
    if len(error) < LEAST_MODELS:
        return Residual(scales=named)
    logs = np.log(table.median_s / (table.parts @ scales))
    rest = np.clip(logs, -0.3, 0.3)[-MOST_POINTS:]
    points = table.figures[-MOST_POINTS:]
    weights = smooth(points, rest)
    return Residual(
        scales=named,
        points=tuple(tuple(float(value) for value in row) for row in points),
        weights=tuple(float(value) for value in weights),
    )


def fit_tail(table: Table) -> Tail:
    """The 99th percentile over the median."""
    ratio, extra = fit_relative(np.stack([table.median_s, np.ones(len(table.median_s))], axis=1), table.p99_s)
    return Tail(ratio=float(ratio), extra_s=float(extra))


def fit_memory(observed: Sequence[Observed]) -> MemoryCost:
    """What a serving process takes; the cache and activations count as they are."""
    features, resident = [], []
    for item in observed:
        if item.peak_memory_bytes is None:
            continue
        parts = memory_parts(item.design, item.workload)
        matrix = [parts.matrices.get(weights, 0) for weights in WEIGHTS]
        features.append([1.0, parts.table_bytes, *matrix])
        resident.append(item.peak_memory_bytes - parts.kv_bytes - parts.activation_bytes)
    base, table, *matrices = fit_relative(features, resident)
    return MemoryCost(
        base_bytes=float(base),
        per_table_byte=float(table),
        per_matrix_byte={weights: float(rate) for weights, rate in zip(WEIGHTS, matrices, strict=True)},
    )


@dataclass(frozen=True)
class Prepared:
    """Observed models with their passes priced once, to be fitted to again and again (folds, a run's updates)."""

    observed: Sequence[Observed]
    tables: dict[Phase, Table]
    memory: Sequence[MemoryParts]

    def __add__(self, other: Prepared) -> Prepared:
        return Prepared(
            [*self.observed, *other.observed],
            {phase: table + other.tables[phase] for phase, table in self.tables.items()},
            [*self.memory, *other.memory],
        )

    def __getitem__(self, rows: Sequence[int]) -> Prepared:
        chosen = list(rows)
        return Prepared(
            [self.observed[i] for i in chosen],
            {phase: table[chosen] for phase, table in self.tables.items()},
            [self.memory[i] for i in chosen],
        )


def prepare(profile: MachineProfile, observed: Sequence[Observed]) -> Prepared:
    """``observed`` priced by ``profile``'s rates."""
    return Prepared(
        observed,
        {phase: tabulate(profile, observed, phase) for phase in Phase},
        [memory_parts(item.design, item.workload) for item in observed],
    )


def refit(profile: MachineProfile, seen: Prepared, *, memory: bool = True) -> MachineProfile:
    """``profile`` with residuals, tails and (if ``memory``) memory fitted to ``seen`` and to its own lessons.

    Memory is fitted to ``seen`` alone. The profile's checks are not touched.
    """
    tables = {
        phase: Table.of(profile.lessons[phase.value]) + table if phase.value in profile.lessons else table
        for phase, table in seen.tables.items()
    }
    return replace(
        profile,
        residuals={phase.value: fit_residual(table) for phase, table in tables.items()},
        tails={phase.value: fit_tail(table) for phase, table in tables.items()},
        memory=fit_memory(seen.observed) if memory else profile.memory,
    )


def predictions(profile: MachineProfile, seen: Prepared) -> dict[str, Float64Array]:
    """Predicted medians, P99 by phase (``decode``, ``decode_p99``, …) and memory of the models, each (n,)."""
    found: dict[str, Float64Array] = {}
    for phase in Phase:
        table = seen.tables[phase]
        median = table.parts.sum(axis=1)
        if phase.value in profile.residuals:
            median = median * factors(table.parts, table.figures, profile.residuals[phase.value], PARTS)
        tail = profile.tails[phase.value]
        found[phase.value], found[f"{phase.value}_p99"] = median, tail.ratio * median + tail.extra_s
    found["memory"] = np.array([parts.peak_bytes(profile.memory) for parts in seen.memory])
    return found


def errors(profile: MachineProfile, seen: Prepared) -> dict[str, CheckError]:
    """How far the profile as it is is off on ``seen``: medians, tails and memory."""
    return _compared(_pairs(profile, seen))


def cross_check(
    profile: MachineProfile, seen: Prepared, *, folds: int = 6, memory: bool = True
) -> dict[str, CheckError]:
    """The same where each model is predicted by a fit that never saw it."""
    count = len(seen.observed)
    pairs: dict[str, list[tuple[float, float]]] = {}
    for fold in range(min(folds, count)):
        kept = [i for i in range(count) if i % folds != fold]
        fitted = refit(profile, seen[kept], memory=memory)
        for name, found in _pairs(fitted, seen[range(fold, count, folds)]).items():
            pairs.setdefault(name, []).extend(found)
    return _compared(pairs)


def _pairs(profile: MachineProfile, seen: Prepared) -> dict[str, list[tuple[float, float]]]:
    """(predicted, measured) by metric."""
    found: dict[str, list[tuple[float, float]]] = {}
    for name, values in predictions(profile, seen).items():
        truths = [_truth(item, name) for item in seen.observed]
        known = [(float(p), truth) for p, truth in zip(values, truths, strict=True) if truth is not None]
        if known:
            found[name] = known
    return found


def _compared(pairs: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, CheckError]:
    return {name: compare([p for p, _ in found], [m for _, m in found]) for name, found in pairs.items()}


def _truth(item: Observed, name: str) -> float | None:
    if name == "memory":
        return item.peak_memory_bytes
    phase, _, tail = name.partition("_")
    return item.seconds(Phase(phase), 0.99 if tail else 0.5)


def compare(predicted: Sequence[float], measured: Sequence[float]) -> CheckError:
    """Mean absolute share of error, spread of ln(measured / predicted) about zero, and Kendall's tau."""
    p, m = np.asarray(predicted, np.float64), np.asarray(measured, np.float64)
    tau = kendall_tau(p, m)
    return CheckError(
        models=len(p),
        mape=float(np.mean(np.abs(p / m - 1))),
        spread=max(0.01, float(np.sqrt(np.mean(np.log(m / p) ** 2)))),
        kendall_tau=None if math.isnan(tau) else tau,
    )


def predict_seconds(
    profile: MachineProfile, design: Design, phase: Phase, workload: Workload, *, logits: int | None = None
) -> float:
    """Predicted median of a pass. ``logits`` is batch times vocabulary unless given."""
    price = total_price((placed.op for placed in lower(design, workload, phase)), profile)
    count = workload.batch * design.arch.vocab_size if logits is None else logits
    return float(combine(price, profile, phase, logits=count))
