"""MachineProfile: rates fitted to measurements on one machine, in one runtime, with a fixed number of threads."""

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
HOT_C = 90.0  # limit of processors (95 to 105 °C in their data sheets, above which they slow down), less a margin
LARGE = ".large"  # suffix of checks on models that do not fit in caches
LARGE_BYTES = 1e8  # stored weights above which a model counts as large
EXTRAPOLATION = 0.25
"""For models with more weights than any checked model: additional standard deviation of the logarithmic error, per unit
of ln(weights / largest checked weights). The squares of the deviations are added. (A change of cache level
can cost a factor of two while the weights grow by a factor of four.)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Seconds per weight byte as a function of the bytes that a whole pass streams (from caches, or from DRAM).

    It is linear in the logarithm of the working set between knots, and constant beyond the first and last knot.
    """

    working_set_bytes: tuple[float, ...]
    s_per_byte: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.working_set_bytes) != len(self.s_per_byte) or not self.s_per_byte:
            raise SpecError("must have as many values as working_set_bytes, and at least one", field="s_per_byte")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Model of the 99th percentile: ``ratio`` times the median plus ``extra_s``, but at least the median."""

    ratio: float
    extra_s: float

    def p99_s(self, median_s: Size, *, passes: Size = 1) -> AnyArray:
        """The 99th percentile, in seconds, of the total time of ``passes`` passes. The median total is ``median_s``."""
        return np.asarray(np.maximum(median_s, self.ratio * median_s + passes * self.extra_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCost:
    """Time of a whole pass: ``scale`` times the operators' total time, plus two costs outside the operators.

    ``call_s`` is the time to call the runtime. ``per_logit_s`` is the time per logit to choose the next token.
    """

    call_s: float
    per_logit_s: float
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCost:
    """Peak resident memory: a base, plus multiples of the stored bytes of tables and of matrices.

    A multiple exceeds 1 if loading copies the stored bytes.
    """

    base_bytes: float
    per_table_byte: float
    per_matrix_byte: Mapping[str, float]  # bytes held per stored byte, by weight format


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckError:
    """The result of one check: prediction errors for whole models, by cross-validation.

    The fit that predicts a model does not use that model's measurements.

    ``spread`` is the standard deviation of ln(measured / predicted). The widths of intervals are computed from it.
    """

    models: int
    mape: float  # mean absolute error as a share of the measured value
    spread: float
    kendall_tau: float | None = None
    least_bytes: float | None = None  # smallest stored weights among the checked models
    most_bytes: float | None = None

    def at(self, stored_bytes: float) -> CheckError:
        """The errors for a model of ``stored_bytes``. Above the largest checked model, ``spread`` grows with size."""
        if self.most_bytes is None or stored_bytes <= self.most_bytes:
            return self
        return replace(self, spread=math.hypot(self.spread, EXTRAPOLATION * math.log(stored_bytes / self.most_bytes)))

    def sentence(self, name: str) -> str:
        """The check's errors in one line of text."""
        text = f"{label_of(name)}: mean error {units.show(self.mape, 'share')}"
        if self.kendall_tau is not None:
            text += f", rank correlation {self.kendall_tau:.2f}"
        sizes = f" of {self.megabytes} MB" if self.megabytes else ""
        return f"{text}, over {counted(self.models, 'model')}{sizes}, each predicted by a fit without it"

    @property
    def megabytes(self) -> str:
        """Sizes of the smallest and the largest checked model in megabytes; empty if unknown."""
        if self.least_bytes is None or self.most_bytes is None:
            return ""
        return f"{_megabytes(self.least_bytes)} to {_megabytes(self.most_bytes)}"


def label_of(check: str) -> str:
    """A check's name in words: ``decode_p99.large`` becomes ``decode P99``."""
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
    """The whole models that calibration measured in one phase, one row per model, stored for later fits.

    Each row of ``parts`` lists seconds in the order of ``names``, which is ``cost.pricing.PARTS``. In older profiles
    ``names`` is empty, and convolutions are part of "other". Each row of ``figures`` is in the order of
    ``cost.residual.FIGURES``. Models that were measured on a busy machine have no P99.
    """

    names: tuple[str, ...] = ()
    parts: tuple[tuple[float, ...], ...]
    figures: tuple[tuple[float, ...], ...]
    median_s: tuple[float, ...]
    p99_s: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thermal:
    """Slowdown under sustained load.

    The time per token rises from its value on a cold machine to ``1 / sustained_share`` times that value. The rise
    follows ``1 - exp(-t / time_constant_s)``. ``throttle_s`` is the time after which half of the rise has happened;
    None if there was no slowdown.
    """

    sustained_share: float  # share of the cold speed that remains under long load
    time_constant_s: float
    throttle_s: float | None
    observed_s: float  # length of the measurement
    temperature_c: float | None = None  # temperature of the hottest zone at the end of the measurement
    ambient_c: float | None = None  # temperature of the surroundings, if stated

    def __post_init__(self) -> None:
        if not 0 < self.sustained_share <= 1:
            raise SpecError(f"must be above 0 and at most 1, not {self.sustained_share}", field="sustained_share")

    def share_at(self, ambient_c: float) -> float:
        """Share of the cold speed that remains at an ambient temperature of ``ambient_c`` degrees Celsius.

        Three assumptions are made. Equal power heats the machine by the same amount at any ambient temperature. A
        machine that slowed down was at its maximum temperature; the maximum of a machine that did not slow down is
        ``HOT_C``, or its measured temperature if that is higher. Power grows with the square of the clock.

        Raises:
            Unsupported: The machine's temperature or the ambient temperature was not recorded, or ``ambient_c`` is too
                high for sustained load.
        """
        if self.temperature_c is None or self.ambient_c is None or self.temperature_c <= self.ambient_c:
            raise Unsupported(
                "no temperatures of this machine and its surroundings were recorded under long load; run: chipwise "
                "measure MODEL --sustained 10m --ambient 25C"
            )
        limit_c = self.temperature_c if self.throttle_s is not None else max(self.temperature_c, HOT_C)
        power = max(limit_c - ambient_c, 0.0) / (self.temperature_c - self.ambient_c)
        if power <= 0:
            raise Unsupported(
                f"a machine that slows down at {limit_c:g} °C cannot run for long at {ambient_c:g} °C ambient; "
                "state a lower ambient temperature"
            )
        return min(1.0, self.sustained_share * math.sqrt(power))


def _numbers(data: object, name: str) -> Iterator[tuple[str, float]]:
    """Yields each number in plain data, with its path as a dotted name."""
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
    """The fitted rates of one machine in one runtime. ``terms["matmul.fp32.vector"]["k"]`` is seconds per unit of the
    feature ``k`` (``predict/cost/terms.py``).

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
    roofs: Mapping[str, float] = field(default_factory=dict)  # measured bytes/s by level of memory
    peaks: Mapping[str, float] = field(default_factory=dict)  # best FLOP/s seen, by weight format
    clean: bool = True
    notes: tuple[str, ...] = ()
    reference_s: Mapping[str, float] = field(default_factory=dict)  # seconds of reference work, to detect drift
    residuals: Mapping[str, Residual] = field(default_factory=dict)  # by phase
    calibration_models: Mapping[str, ModelRows] = field(default_factory=dict)  # by phase
    learned_from: int = 0  # number of measured models in addition to those of calibration
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
            Unsupported: This profile has no rates for ``model``.
        """
        try:
            return self.terms[model]
        except KeyError:
            raise Unsupported(
                f"the profile of {self.machine.name} in {self.runtime} has no rates for {model}; "
                f"run: chipwise calibrate (it has: {', '.join(sorted(self.terms))})"
            ) from None

    def check(self, name: str, stored_bytes: float) -> CheckError:
        """The check for ``name`` (``decode``, ``decode_p99``, ``memory``) that applies to a model of ``stored_bytes``.

        Some profiles have a separate check for large models. If there is no check for a P99, the result is the check
        for the median.
        """
        name = name if name in self.checks else name.removesuffix("_p99")
        small, large = self.checks[name], self.checks.get(name + LARGE)
        return (large if large is not None and stored_bytes > LARGE_BYTES else small).at(stored_bytes)

    @property
    def check_errors(self) -> str:
        """The errors of each check as one line of text. There is a check for each phase and range of model sizes."""
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
            raise SpecError(f"this is not a machine profile of version {SCHEMA}; run: chipwise calibrate", file=file)
        fields = {RENAMED.get(key, key): value for key, value in data.items() if key != "schema"}
        try:
            return build(cls, fields, file=file)
        except SpecError as error:
            message = f"{error.message}; this profile is damaged, so create a new one: chipwise calibrate"
            raise SpecError(message, file=error.file, field=error.field) from None
