"""Fits a machine profile to measured models and reports the profile's errors.

Calibration, searches and :func:`chipwise.learn` use this module. The rates of single nodes stay as calibration found
them. These quantities are fitted to whole models: the costs of a pass that are not costs of single nodes, a factor for
each of ``PARTS``, a smooth residual, tail latencies and memory. Errors are from cross-validation: every model is
predicted by a fit to the others.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import AnyArray, Float64Array
from chipwise.core.statistics import Z90, kendall_tau, nnls
from chipwise.deploy.calibrate.random_models import WEIGHTS
from chipwise.deploy.measure.measurement import Measurement
from chipwise.deploy.measure.store import MeasurementStore, Stored
from chipwise.errors import InputError
from chipwise.hardware.device import (
    LARGE,
    LARGE_BYTES,
    CheckError,
    MachineProfile,
    MemoryCost,
    ModelRows,
    PassCost,
    Residual,
    Tail,
)
from chipwise.model.arch.design import Design
from chipwise.model.kinds.text.form import DECODER
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower
from chipwise.predict.cost.memory import MemoryParts, memory_parts
from chipwise.predict.cost.pricing import PARTS, anatomy, combine, total_price
from chipwise.predict.cost.residual import MOST_POINTS, NOISE, factors, smooth

PART_SPREAD = 0.2  # prior standard deviation of a part's factor around the common factor
COMMON_SPREAD = 0.5  # prior standard deviation of the common factor around 1
LEAST_FACTOR, MOST_FACTOR = 0.25, 4.0
LEAST_PASS_SCALE = 0.05  # minimum time of a pass, as a share of its nodes' time
ROUNDS = 4  # rounds of down-weighting outliers
LEAST_MODELS = 6  # minimum number of models for a smooth residual; with fewer models only factors are fitted
LEAST_MEASURED = 3  # minimum number of models in the store of measurements for a fit
LEAST_CHECKED = 12  # minimum number of measured models whose errors replace those that calibration reported
FOLDS = 5  # coprime to the cycles of formats, prompts and new processes, so that every fold has all of them
PRIOR_MODELS = 1.0  # weight of the prior "no correction", in models
Pair = tuple[float, float, float]  # predicted, measured, stored bytes of weights
Check = Mapping[str, CheckError]


class Observed(Protocol):
    """One measured model. The measured latencies are corrected for the machine's drift since calibration."""

    @property
    def design(self) -> Design:
        """The measured design."""
        ...

    @property
    def workload(self) -> Workload:
        """The requests that the model was measured on."""
        ...

    def seconds(self, phase: Phase, share: float) -> float:
        """The ``share`` quantile (0.5, 0.99) of the seconds of a pass; NaN for the P99 of a busy machine."""
        ...

    @property
    def peak_memory_bytes(self) -> float | None:
        """Peak resident memory; None if it could not be read."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A design with its measurement; implements :class:`Observed`."""

    design: Design
    measured: Measurement
    busy_tails: bool = False  # whether P99 is used although the machine was busy

    @property
    def workload(self) -> Workload:
        """The requests that the model was measured on."""
        return self.measured.workload

    @property
    def peak_memory_bytes(self) -> float | None:
        """Peak resident memory; None if it could not be read."""
        return self.measured.peak_memory_bytes

    def seconds(self, phase: Phase, share: float) -> float:
        """The ``share`` quantile of a pass's seconds, corrected for drift; processor time if the machine was busy."""
        if share > 0.5 and not (self.measured.clean or self.busy_tails):
            return math.nan
        one_pass = phase is Phase.PREFILL or not self.design.arch.reads_tokens
        settled = self.measured.settled(f"{'ttft' if one_pass else 'tpot'}_p{share * 100:.0f}")
        return settled / self.design.arch.passes


def fit_relative(features: npt.ArrayLike, seconds: npt.ArrayLike, *, rounds: int = 6) -> Float64Array:
    """Fits rates ≥ 0 that minimise the relative errors of ``features @ rates`` as predictions of ``seconds``.

    Further rounds give outliers (disturbed measurements) less weight.
    """
    counts, times = np.asarray(features, np.float64), np.asarray(seconds, np.float64)
    scale = np.maximum(np.abs(counts).max(axis=0), 1e-300)
    rows = counts / scale / times[:, None]
    weights = np.ones(len(times))
    rates = np.zeros(counts.shape[1])
    for _ in range(rounds):
        rates = nnls(rows * weights[:, None], weights)
        error = np.abs(rows @ rates - 1)
        typical = max(float(np.median(error)), 0.01)
        weights = np.sqrt(1 / np.maximum(1.0, error / (2 * typical)))
    return np.asarray(rates / scale)


def rising(knots: npt.ArrayLike, at: npt.ArrayLike) -> Float64Array:
    """Basis of non-decreasing curves: a constant, and between each two adjacent knots a ramp linear in log(``at``)."""
    places = np.log2(np.maximum(np.asarray(at, np.float64), 1.0))
    ramps = [np.clip((places - low) / (high - low), 0, 1) for low, high in pairwise(np.log2(np.asarray(knots)))]
    return np.stack([np.ones_like(places), *ramps], axis=-1)


@dataclass(frozen=True)
class PhaseTable:
    """Computed and measured times of n observed models in one phase, as arrays with one row for each model."""

    parts: Float64Array  # (n, parts) seconds
    figures: Float64Array  # (n, figures)
    median_s: Float64Array  # (n,), measured
    p99_s: Float64Array  # (n,), measured; NaN if the machine was busy

    def __getitem__(self, rows: AnyArray | slice | list[int]) -> PhaseTable:
        return PhaseTable(self.parts[rows], self.figures[rows], self.median_s[rows], self.p99_s[rows])

    def __add__(self, other: PhaseTable) -> PhaseTable:
        mine, theirs = ((table.parts, table.figures, table.median_s, table.p99_s) for table in (self, other))
        return PhaseTable(*(np.concatenate(pair) for pair in zip(mine, theirs, strict=True)))

    def to_rows(self) -> ModelRows:
        """Converts the table to the type that profiles store."""
        return ModelRows(
            names=PARTS,
            parts=tuple(map(tuple, self.parts.tolist())),
            figures=tuple(map(tuple, self.figures.tolist())),
            median_s=tuple(self.median_s.tolist()),
            p99_s=tuple(None if math.isnan(value) else value for value in self.p99_s.tolist()),
        )

    @classmethod
    def from_rows(cls, rows: ModelRows) -> PhaseTable:
        """Reads the output of :meth:`to_rows`."""
        names = rows.names or tuple(name for name in PARTS if name != "conv")
        stored = np.array(rows.parts, np.float64)
        parts = np.stack(
            [stored[:, names.index(name)] if name in names else 0 * stored[:, 0] for name in PARTS], axis=1
        )
        return cls(parts, *(np.array(column, np.float64) for column in (rows.figures, rows.median_s, rows.p99_s)))


@dataclass(frozen=True)
class Prepared:
    """Observed models and their costs, which are computed from a profile's rates only once and used by many fits."""

    observed: Sequence[Observed]
    tables: dict[Phase, PhaseTable]
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

    def to_rows(self) -> dict[str, ModelRows]:
        """Maps the name of each phase to its table, converted to the type that profiles store."""
        return {phase.value: table.to_rows() for phase, table in self.tables.items()}


def prepare(profile: MachineProfile, observed: Sequence[Observed]) -> Prepared:
    """Computes the costs of ``observed`` from the rates of ``profile``."""
    return Prepared(
        observed,
        {phase: _phase_table(profile, observed, phase) for phase in Phase},
        [memory_parts(item.design, item.workload, runtime=profile.runtime) for item in observed],
    )


def _phase_table(profile: MachineProfile, observed: Sequence[Observed], phase: Phase) -> PhaseTable:
    rows = []
    for item in observed:
        price = total_price((placed.op for placed in lower(item.design, item.workload, phase)), profile)
        logits = item.workload.batch * item.design.arch.outputs
        priced = anatomy(price, profile, phase, logits=logits)
        rows.append((*priced, item.seconds(phase, 0.5), item.seconds(phase, 0.99)))
    return PhaseTable(*(np.array(column, np.float64) for column in zip(*rows, strict=True)))


def fit_passes(profile: MachineProfile, observed: Sequence[Observed]) -> dict[str, PassCost]:
    """Fits pass costs to whole models: the call, the choice of a token, and a factor on the nodes' time in each phase.

    ``profile`` must have pass costs 0 and scales 1. Calling the runtime and choosing a token cost the same in both
    phases, so both phases are fitted together.
    """
    phases = tuple(Phase)
    nodes = np.array(
        [[predict_seconds(profile, o.design, phase, o.workload, logits=0) for o in observed] for phase in phases]
    )
    measured = np.array([[item.seconds(phase, 0.5) for item in observed] for phase in phases])
    logits = [item.workload.batch * item.design.arch.outputs for item in observed]
    if max(logits) == min(logits):  # equal numbers cannot be told from the cost of the call, which then includes them
        logits = [0] * len(observed)
    shared = np.array([[1.0, count] for count in logits] * len(phases))
    by_phase = np.zeros((len(phases), len(observed), len(phases)))
    for i in range(len(phases)):
        by_phase[i, :, i] = nodes[i]
    call, logit, *scales = fit_relative(np.hstack([shared, by_phase.reshape(len(shared), -1)]), measured.ravel())
    if min(scales) < LEAST_PASS_SCALE:  # nodes explain little here, but an operator always takes some time
        scales = [max(LEAST_PASS_SCALE, scale) for scale in scales]
        within = np.array(scales)[:, None] * nodes
        call, logit = fit_relative(shared, np.maximum(measured - within, 0.1 * measured).ravel())
    return {
        phase.value: PassCost(call_s=float(call), per_logit_s=float(logit), scale=float(scale))
        for phase, scale in zip(phases, scales, strict=True)
    }


def fit_residual(table: PhaseTable) -> Residual:
    """Fits factors and a smooth residual that minimise the relative errors of the predicted medians.

    The seconds of a pass are a sum over ``PARTS`` (groups of operators, the call, logits). The factor of each summand
    is 1 plus a term common to all summands plus a term of its own; all these terms have Gaussian priors with mean 0.
    Outliers (disturbed measurements) are weighted down.
    """
    total = table.parts.sum(axis=1)
    shares = table.parts / total[:, None]
    error = table.median_s / total - 1
    rows = np.hstack([shares, np.ones((len(error), 1))])
    prior = NOISE**2 * np.diag([PART_SPREAD**-2] * shares.shape[1] + [COMMON_SPREAD**-2])
    weights = np.ones(len(error))
    for _ in range(ROUNDS):
        weighted = rows * weights[:, None]
        change = np.linalg.solve(weighted.T @ rows + prior, weighted.T @ error)
        left = np.abs(error - rows @ change)
        weights = 1 / np.maximum(1.0, left / (2 * max(float(np.median(left)), 0.01)))
    scales = np.clip(1 + change[:-1] + change[-1], LEAST_FACTOR, MOST_FACTOR)
    named = {name: float(scale) for name, scale in zip(PARTS, scales, strict=True)}
    if len(error) < LEAST_MODELS:
        return Residual(scales=named)
    logs = np.clip(np.log(table.median_s / (table.parts @ scales)), -0.3, 0.3)
    points = table.figures[-MOST_POINTS:]
    return Residual(
        scales=named,
        points=tuple(map(tuple, points.tolist())),
        weights=tuple(smooth(points, logs[-MOST_POINTS:]).tolist()),
    )


def fit_tail(table: PhaseTable) -> Tail | None:
    """Fits P99 as a function of the median, and never below the median; None if no P99 is known."""
    table = table[~np.isnan(table.p99_s)]
    if not len(table.p99_s):
        return None
    ratio, extra = fit_relative(np.stack([table.median_s, np.ones(len(table.median_s))], axis=1), table.p99_s)
    if ratio < 1:  # slow models would have a P99 below their median, so fix the ratio at 1 and fit the rest
        weights = table.p99_s**-2.0
        ratio, extra = 1.0, max(0.0, float(weights @ (table.p99_s - table.median_s) / weights.sum()))
    return Tail(ratio=float(ratio), extra_s=float(extra))


def fit_memory(observed: Sequence[Observed], runtime: str = "") -> MemoryCost:
    """Fits the peak memory of a serving process; cache and activations are computed, not fitted.

    A format that no observed model uses gets the largest memory per weight byte that was fitted to any format.
    """
    features, resident = [], []
    for item in observed:
        if item.peak_memory_bytes is None:
            continue
        parts = memory_parts(item.design, item.workload, runtime=runtime)
        features.append([1.0, parts.table_bytes, *(parts.matrices.get(weights, 0) for weights in WEIGHTS)])
        resident.append(item.peak_memory_bytes - parts.kv_bytes - parts.activation_bytes)
    base, table, *matrices = fit_relative(features, resident)
    seen = np.any(np.array(features)[:, 2:] > 0, axis=0)
    return MemoryCost(
        base_bytes=float(base),
        per_table_byte=float(table),
        per_matrix_byte={
            weights: float(rate if known else max(matrices))
            for weights, rate, known in zip(WEIGHTS, matrices, seen, strict=True)
        },
    )


def refit(profile: MachineProfile, seen: Prepared, *, memory: bool = True) -> MachineProfile:
    """Refits the residuals, tails and memory costs of ``profile`` to the models ``seen``.

    Residuals and tails are fitted to the models of the profile's calibration, too. Parts of the profile for which there
    are no observations stay unchanged. The stored errors are not updated.
    """
    if not len(seen.observed):
        return profile
    measured = any(item.peak_memory_bytes is not None for item in seen.observed)
    known = {phase: profile.calibration_models.get(phase.value) for phase in Phase}
    tables = {
        phase: table if (rows := known[phase]) is None else PhaseTable.from_rows(rows) + table
        for phase, table in seen.tables.items()
    }
    return replace(
        profile,
        residuals={phase.value: fit_residual(table) for phase, table in tables.items()},
        tails={phase.value: fit_tail(table) or profile.tails[phase.value] for phase, table in tables.items()},
        memory=fit_memory(seen.observed, profile.runtime) if memory and measured else profile.memory,
    )


def predictions(profile: MachineProfile, seen: Prepared) -> dict[str, Float64Array]:
    """Predicted medians and P99 by phase (``decode``, ``decode_p99``, …) and predicted memory, each (n,)."""
    found: dict[str, Float64Array] = {}
    for phase in Phase:
        table = seen.tables[phase]
        median = table.parts.sum(axis=1)
        if phase.value in profile.residuals:
            median = median * factors(table.parts, table.figures, profile.residuals[phase.value], PARTS)
        tail = profile.tails[phase.value]
        found[phase.value], found[f"{phase.value}_p99"] = median, tail.p99_s(median)
    found["memory"] = np.array([parts.peak_bytes(profile.memory) for parts in seen.memory])
    return found


def predict_seconds(
    profile: MachineProfile, design: Design, phase: Phase, workload: Workload, *, logits: int | None = None
) -> float:
    """Predicted median of a pass. ``logits`` is the number of logits; default: batch times the model's outputs."""
    price = total_price((placed.op for placed in lower(design, workload, phase)), profile)
    count = workload.batch * design.arch.outputs if logits is None else logits
    return float(combine(price, profile, phase, logits=count))


def errors(profile: MachineProfile, seen: Prepared) -> dict[str, CheckError]:
    """Errors of the unchanged profile on ``seen``."""
    return _summary(seen.observed, predictions(profile, seen))


def cross_validate(
    observed: Sequence[Observed], fit: Callable[[list[Observed]], MachineProfile], *, folds: int = FOLDS
) -> dict[str, CheckError]:
    """Cross-validation errors of the function ``fit``: each model is predicted by a fit that leaves it out."""

    def predict(kept: list[int], left_out: list[int]) -> dict[str, Float64Array]:
        profile = fit([observed[i] for i in kept])
        return predictions(profile, prepare(profile, [observed[i] for i in left_out]))

    return _summary(observed, _in_folds(len(observed), predict, folds))


def cross_check(
    profile: MachineProfile, seen: Prepared, *, folds: int = FOLDS, memory: bool = True
) -> dict[str, CheckError]:
    """Cross-validation errors of :func:`refit`. Rates and pass costs of the profile stay unchanged."""
    return _summary(seen.observed, held_out_predictions(profile, seen, folds=folds, memory=memory))


def held_out_predictions(
    profile: MachineProfile, seen: Prepared, *, folds: int = FOLDS, memory: bool = True
) -> dict[str, Float64Array]:
    """Like :func:`predictions`, but every model is predicted by a :func:`refit` that leaves it out."""

    def predict(kept: list[int], left_out: list[int]) -> dict[str, Float64Array]:
        return predictions(refit(profile, seen[kept], memory=memory), seen[left_out])

    return _in_folds(len(seen.observed), predict, folds)


def _in_folds(
    count: int, predict: Callable[[list[int], list[int]], dict[str, Float64Array]], folds: int
) -> dict[str, Float64Array]:
    """Predictions of all models, fold by fold; ``predict`` gets the indices of the models to fit and to predict."""
    found: dict[str, Float64Array] = {}
    for fold in range(min(folds, count)):
        left_out = list(range(fold, count, folds))
        for name, values in predict([i for i in range(count) if i % folds != fold], left_out).items():
            found.setdefault(name, np.full(count, np.nan))[left_out] = values
    return found


def _summary(observed: Sequence[Observed], predicted: Mapping[str, Float64Array]) -> dict[str, CheckError]:
    """Maps each metric to its errors. If there are small and large models, large models have separate entries."""
    sizes = [stored_bytes(item.design, item.workload) for item in observed]
    found: dict[str, CheckError] = {}
    for name, values in predicted.items():
        truths = [_truth(item, name) for item in observed]
        known = [(float(p), m, size) for p, m, size in zip(values, truths, sizes, strict=True) if m is not None]
        small = [pair for pair in known if pair[2] <= LARGE_BYTES]
        large = [pair for pair in known if pair[2] > LARGE_BYTES]
        if known:
            found[name] = _check(small or large)
        if small and large:
            found[name + LARGE] = _check(large)
    return found


def stored_bytes(design: Design, workload: Workload) -> float:
    """Bytes of all weights as stored."""
    parts = memory_parts(design, workload)
    return float(parts.table_bytes + parts.matrix_bytes)


def _truth(item: Observed, name: str) -> float | None:
    if name == "memory":
        return item.peak_memory_bytes
    phase, _, tail = name.partition("_")
    seconds = item.seconds(Phase(phase), 0.99 if tail else 0.5)
    return None if math.isnan(seconds) else seconds


def _check(pairs: Sequence[Pair]) -> CheckError:
    predicted, measured, sizes = zip(*pairs, strict=True)
    return replace(compare(predicted, measured), least_bytes=min(sizes), most_bytes=max(sizes))


def compare(predicted: Sequence[float], measured: Sequence[float]) -> CheckError:
    """Mean absolute relative error, spread of ln(measured / predicted) about zero, and Kendall's tau.

    For few models the spread is widened, so that 1.645 times the spread is the 95 % quantile of a Student's t
    distribution.

    References:
        Abramowitz and Stegun 1964, 26.7.5: the quantile of Student's t to the first order in 1/n.
    """
    p, m = np.asarray(predicted, np.float64), np.asarray(measured, np.float64)
    tau = kendall_tau(p, m)
    few = 1 + (Z90**2 + 1) / (4 * len(p))
    return CheckError(
        models=len(p),
        mape=float(np.mean(np.abs(p / m - 1))),
        spread=max(0.01, few * float(np.sqrt(np.mean(np.log(m / p) ** 2)))),
        kendall_tau=None if math.isnan(tau) else tau,
    )


def learn(profile: MachineProfile, seen: Prepared) -> MachineProfile:
    """Returns ``profile``, refitted to measured models; :func:`prepare` must have computed ``seen`` from ``profile``.

    If there are enough measured models, the stored errors are replaced by cross-validation errors on these models.
    """
    count = len(seen.observed)
    if not count:
        return profile
    formats = {name for item in seen.observed if item.peak_memory_bytes for name in item.design.formats.all}
    memory = count >= LEAST_CHECKED and set(profile.memory.per_matrix_byte) <= formats
    checks = dict(profile.checks)
    if count >= LEAST_CHECKED:
        checks |= cross_check(profile, seen, memory=memory)
    return replace(refit(profile, seen, memory=memory), checks=checks, learned_from=count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A factor that multiplies predictions, and the half-width of their 90 % interval in logarithms."""

    factor: float = 1.0
    spread: float

    def interval(self, predicted: float, *, extra: float = 0.0) -> tuple[float, float, float]:
        """The corrected value and its 90 % interval; ``extra`` is an additional standard deviation in logarithms."""
        value, half = predicted * self.factor, math.hypot(self.spread, Z90 * extra)
        return value, value * math.exp(-half), value * math.exp(half)


def correction(pairs: Iterable[tuple[float, float]], *, error: float) -> Correction:
    """The factor from predictions to measurements in ``pairs``, shrunk towards 1, and the half-width of its interval.

    Each prediction must come from a fit that leaves its model out (:func:`held_out_predictions`).

    Args:
        pairs: For each model, the uncorrected prediction and the measurement of the same metric, both positive.
        error: Prior standard deviation of ln(measured / predicted).
    """
    logs = [math.log(measured / predicted) for predicted, measured in pairs if predicted > 0 and measured > 0]
    mean = sum(logs) / (len(logs) + PRIOR_MODELS)
    # The prior variance counts as PRIOR_MODELS + 1 observations: two lucky measurements must not close the interval.
    weight = PRIOR_MODELS + 1.0
    variance = (weight * error**2 + sum((item - mean) ** 2 for item in logs)) / (weight + len(logs))
    return Correction(factor=math.exp(mean), spread=Z90 * math.sqrt(variance))


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """A profile fitted to stored measurements, with cross-validated errors before and after."""

    profile: MachineProfile
    used: tuple[str, ...]  # ids of the measurements
    before: dict[str, CheckError]
    after: dict[str, CheckError]


def fit_from_measurements(
    profile: MachineProfile, store: MeasurementStore | None = None, *, count: int | None = None, seed: int = 0
) -> Learned:
    """Updates ``profile`` with the stored measurements of its machine, runtime and number of threads.

    Imported measurements are ignored, because the name of their machine is unverified.

    Args:
        profile: A calibrated profile.
        store: The store of measurements; the user's own unless given.
        count: Use only this many measurements, sampled with ``seed`` (few-shot).
        seed: Random seed of the sample.

    Raises:
        InputError: Too few measurements have a known design.
    """
    store = store or MeasurementStore()
    found = [item for item in store.entries(runtime=profile.runtime, threads=profile.threads) if _fits(profile, item)]
    if count is not None and count < len(found):
        found = random.Random(seed).sample(found, count)
    samples = [Sample(design=item.design, measured=item.measurement) for item in found if item.design is not None]
    if len(samples) < LEAST_MEASURED:
        threads = f"{profile.threads} thread{'s' if profile.threads > 1 else ''}"
        raise InputError(
            f"{store.path} holds {len(samples)} measurements of {profile.machine.name} in {profile.runtime} with "
            f"{threads} that were taken here and whose design is known; learning needs at least {LEAST_MEASURED}. "
            "Measure more: chipwise measure MODEL, or chipwise search"
        )
    seen = prepare(profile, samples)
    learned = learn(profile, seen)
    return Learned(
        profile=learned,
        used=tuple(item.id for item in found),
        before=errors(profile, seen),
        after=cross_check(profile, seen, folds=min(10, len(samples)), memory=learned.memory != profile.memory),
    )


def _fits(profile: MachineProfile, item: Stored) -> bool:
    decodes = item.design is not None and DECODER.builds(item.design.arch) and not item.measurement.encodes
    return decodes and not item.imported and item.measurement.device == profile.machine.name
