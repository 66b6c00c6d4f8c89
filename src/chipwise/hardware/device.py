"""MachineProfile: the rates measured on one machine, in one runtime, with one number of threads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from chipwise.core import units
from chipwise.core.arrays import AnyArray
from chipwise.core.digest import digest, plain
from chipwise.core.dtypes import Size
from chipwise.core.files import build, read_json, write_json
from chipwise.errors import SpecError, Unsupported, counted
from chipwise.hardware.detect import Machine

SCHEMA = "chipwise.machine/1"
RENAMED = {"anchors": "reference_s", "lessons": "calibration_models"}  # old names of fields in stored profiles
HOT_C = 90.0  # temperature at which processors slow down at the latest (95 to 105 °C by their sheets), less a reserve
LARGE = ".large"  # suffix of checks on models that do not fit in caches
LARGE_BYTES = 1e8  # stored weights above which a model counts as large
EXTRAPOLATION = 0.25
"""Increase of the standard deviation of log errors for each factor of e by which a model's weights exceed the checked
sizes. (A change of cache level can cost a factor of two within a factor of four in size.) Smaller models have the
checked models' deviation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Seconds per weight byte as a function of the bytes that a whole pass streams (from caches, or from DRAM).

    Linear between knots over the logarithm of the working set; constant beyond the ends.
    """

    working_set_bytes: tuple[float, ...]
    s_per_byte: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.working_set_bytes) != len(self.s_per_byte) or not self.s_per_byte:
            raise SpecError("a curve needs as many values as knots, and at least one", field="s_per_byte")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The 99th percentile as ``ratio`` times the median plus ``extra_s``; never less than the median."""

    ratio: float
    extra_s: float

    def p99_s(self, median_s: Size, *, passes: Size = 1) -> AnyArray:
        """The 99th percentile of ``passes`` passes with median ``median_s``, in seconds; both may be arrays."""
        return np.asarray(np.maximum(median_s, self.ratio * median_s + passes * self.extra_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCost:
    """Time of a whole pass: ``scale`` times the sum of its operators, plus the runtime's call and choosing a token."""

    call_s: float
    per_logit_s: float
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCost:
    """Peak resident memory: a base, plus each kind of content times its number of copies (from packing and loading)."""

    base_bytes: float
    per_table_byte: float
    per_matrix_byte: Mapping[str, float]  # by weight format


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckError:
    """Errors of predictions for whole models; each model is predicted by a fit that left it out.

    ``spread`` is the standard deviation of ln(measured / predicted), from which intervals come.
    """

    models: int
    mape: float  # mean absolute error as a share of the measured value
    spread: float
    kendall_tau: float | None = None
    least_bytes: float | None = None  # smallest stored weights among the checked models
    most_bytes: float | None = None

    def at(self, stored_bytes: float) -> CheckError:
        """A copy for a model of ``stored_bytes``: the spread grows above the sizes that were checked."""
        if self.most_bytes is None or stored_bytes <= self.most_bytes:
            return self
        return replace(self, spread=math.hypot(self.spread, EXTRAPOLATION * math.log(stored_bytes / self.most_bytes)))

    def sentence(self, name: str) -> str:
        """One line of text about the check."""
        text = f"{label_of(name)}: mean error {units.show(self.mape, 'share')}"
        if self.kendall_tau is not None:
            text += f", rank correlation {self.kendall_tau:.2f}"
        sizes = f" of {self.megabytes} MB" if self.megabytes else ""
        return f"{text}, over {counted(self.models, 'model')}{sizes}, each predicted by a fit without it"

    @property
    def megabytes(self) -> str:
        """Smallest and largest weights of the checked models in megabytes; empty if unknown."""
        if self.least_bytes is None or self.most_bytes is None:
            return ""
        return f"{_megabytes(self.least_bytes)} to {_megabytes(self.most_bytes)}"


def label_of(check: str) -> str:
    """Name of a check in words: ``decode_p99.large`` is ``decode P99``."""
    return check.removesuffix(LARGE).replace("_p99", " P99")


def _megabytes(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:.2g}" if size_bytes < LARGE_BYTES else f"{size_bytes / 1e6:.0f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """A correction fitted to whole models (``predict/cost/residual.py``): a factor for each part of a pass, and a
    smooth residual.

    ``points`` are the features of the models that the correction was fitted to, ``weights`` their weights in the smooth
    residual.
    """

    scales: Mapping[str, float]
    points: tuple[tuple[float, ...], ...] = ()
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.points) != len(self.weights):
            raise SpecError("needs as many weights as points", field="weights")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRows:
    """The whole models of a calibration in one phase, one row per model, kept for later fits.

    Rows of ``parts`` are seconds in the order of ``names`` (``cost.pricing.PARTS``; empty in older profiles, where
    convolutions were part of "other"); rows of ``figures`` are in the order of ``cost.residual.FIGURES``. Models that
    were measured on a busy machine have no P99.
    """

    names: tuple[str, ...] = ()
    parts: tuple[tuple[float, ...], ...]
    figures: tuple[tuple[float, ...], ...]
    median_s: tuple[float, ...]
    p99_s: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thermal:
    """Slowdown under sustained load: time per token rises from its cold value to ``1 / sustained_share`` times that.

    It rises as ``1 - exp(-t / time_constant_s)``. ``throttle_s`` is the time until half of the rise; None if there was
    no slowdown.
    """

    sustained_share: float  # share of the cold speed that remains under long load
    time_constant_s: float
    throttle_s: float | None
    observed_s: float  # length of the measurement
    temperature_c: float | None = None  # of the hottest zone at its end
    ambient_c: float | None = None  # of the surroundings, if stated

    def __post_init__(self) -> None:
        if not 0 < self.sustained_share <= 1:
            raise SpecError(f"must be a share of the cold speed, not {self.sustained_share}", field="sustained_share")

    def share_at(self, ambient_c: float) -> float:
        """Share of the cold speed that remains in surroundings of ``ambient_c`` degrees Celsius.

        The same power holds the same rise of temperature. A machine that slowed down was at its limit; one that did not
        may get hotter up to ``HOT_C``. Power is taken to go with the square of the clock.

        Raises:
            Unsupported: The temperature of the machine or of its surroundings was not recorded.
        """
        if self.temperature_c is None or self.ambient_c is None or self.temperature_c <= self.ambient_c:
            raise Unsupported(
                "the machine's temperature or that of its surroundings was not recorded under long load; run: chipwise "
                "measure MODEL --sustained 10m --ambient 25C"
            )
        limit_c = self.temperature_c if self.throttle_s is not None else max(self.temperature_c, HOT_C)
        power = max(limit_c - ambient_c, 0.0) / (self.temperature_c - self.ambient_c)
        if power <= 0:
            raise Unsupported(f"a machine that slows down at {limit_c:g} °C has no long load at {ambient_c:g} °C")
        return min(1.0, self.sustained_share * math.sqrt(power))


def _numbers(data: object, name: str) -> Iterator[tuple[str, float]]:
    """All numbers in plain data, with their dotted names."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _numbers(value, f"{name}.{key}")
    elif isinstance(data, list | tuple):
        for value in data:
            yield from _numbers(value, name)
    elif isinstance(data, int | float):
        yield name, data


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineProfile:
    """Fitted rates. ``terms["matmul.fp32.vector"]["k"]`` is seconds per unit of that feature
    (``predict/cost/terms.py``).

    Raises:
        SpecError: A rate is negative or not a number.
    """

    machine: Machine
    runtime: str
    runtime_version: str
    threads: int
    created: str  # ISO date and time
    terms: Mapping[str, Mapping[str, float]]
    curves: Mapping[str, Curve]
    passes: Mapping[str, PassCost]  # by phase
    memory: MemoryCost
    tails: Mapping[str, Tail]  # by phase
    checks: Mapping[str, CheckError]  # "prefill", "decode_p99", "memory"; large models separately: "decode.large"
    roofs: Mapping[str, float] = field(default_factory=dict)  # bytes/s by level, as measured
    peaks: Mapping[str, float] = field(default_factory=dict)  # FLOP/s by weight format, best seen
    clean: bool = True
    notes: tuple[str, ...] = ()
    reference_s: Mapping[str, float] = field(default_factory=dict)  # seconds of reference work, to detect drift
    residuals: Mapping[str, Residual] = field(default_factory=dict)  # by phase
    calibration_models: Mapping[str, ModelRows] = field(default_factory=dict)  # by phase
    learned_from: int = 0  # measured models in addition to calibration's
    thermal: Thermal | None = None

    def __post_init__(self) -> None:
        for field_name in ("terms", "curves", "passes", "memory", "tails", "reference_s", "residuals", "checks"):
            signed = field_name in ("residuals", "checks")  # residual weights and rank correlations may be negative
            for name, value in _numbers(plain(getattr(self, field_name)), field_name):
                if not math.isfinite(value) or (value < 0 and not signed):
                    least = "" if signed else " of at least 0"
                    raise SpecError(f"must be a finite number{least}, not {value}", field=name)

    @property
    def digest(self) -> str:
        """Digest of the fitted rates."""
        return digest(self)

    def rates(self, model: str) -> Mapping[str, float]:
        """The fitted rates of one kind of operator.

        Raises:
            Unsupported: This profile has no rates for it.
        """
        try:
            return self.terms[model]
        except KeyError:
            raise Unsupported(
                f"the profile of {self.machine.name} in {self.runtime} has no rates for {model}; "
                f"run: chipwise calibrate (it has: {', '.join(sorted(self.terms))})"
            ) from None

    def check(self, name: str, stored_bytes: float) -> CheckError:
        """The check that applies to ``name`` (``decode``, ``decode_p99``, ``memory``) for a model of ``stored_bytes``.

        Large models have a separate check, if any. Tails without a check use the median's.
        """
        name = name if name in self.checks else name.removesuffix("_p99")
        small, large = self.checks[name], self.checks.get(name + LARGE)
        return (large if large is not None and stored_bytes > LARGE_BYTES else small).at(stored_bytes)

    @property
    def check_errors(self) -> str:
        """One line on errors for each phase and range of sizes; each model was left out of its fit."""
        return "\n".join(check.sentence(name) for name, check in self.checks.items())

    def save(self, path: str | Path) -> None:
        """Writes the profile as JSON."""
        write_json(path, {"schema": SCHEMA, **plain(self)})

    @classmethod
    def load(cls, path: str | Path) -> MachineProfile:
        """Reads a profile.

        Raises:
            SpecError: The file is missing or not a machine profile of this version.
        """
        return cls.from_data(read_json(path), file=str(path))

    @classmethod
    def from_data(cls, data: object, *, file: str | None = None) -> MachineProfile:
        """The profile that ``data`` describes."""
        if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
            raise SpecError(f"not a machine profile of this version ({SCHEMA}); run: chipwise calibrate", file=file)
        fields = {RENAMED.get(key, key): value for key, value in data.items() if key != "schema"}
        try:
            return build(cls, fields, file=file)
        except SpecError as error:
            message = f"{error.message}; this profile is damaged, make a new one: chipwise calibrate"
            raise SpecError(message, file=error.file, field=error.field) from None
