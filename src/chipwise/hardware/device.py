"""MachineProfile: what one machine was measured to offer, in one runtime, with one number of threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chipwise.core.digest import digest, plain
from chipwise.core.errors import SpecError, Unsupported
from chipwise.core.files import build, read_json, write_json
from chipwise.hardware.detect import Machine

SCHEMA = "chipwise.machine/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Seconds per weight byte against the bytes that a whole pass streams: caches, then DRAM.

    Straight lines between knots over the logarithm of the working set; level beyond the ends.
    """

    working_set_bytes: tuple[float, ...]
    s_per_byte: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.working_set_bytes) != len(self.s_per_byte) or not self.s_per_byte:
            raise SpecError("a curve needs as many values as knots, and at least one", field="s_per_byte")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The 99th percentile as ``ratio`` times the median plus ``extra_s``."""

    ratio: float
    extra_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCost:
    """What a whole pass costs beyond its operators: ``scale`` times their sum, plus a call, plus choosing a token."""

    call_s: float
    per_logit_s: float
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCost:
    """Peak resident memory: a base, and how often each stored byte is held (packing, loading)."""

    base_bytes: float
    per_table_byte: float
    per_matrix_byte: Mapping[str, float]  # by weight format


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckError:
    """Prediction against measurement over whole models that were not fitted: errors are shares of the measured value.

    ``spread`` is the standard deviation of ln(measured / predicted), from which intervals come.
    """

    models: int
    mape: float
    spread: float
    kendall_tau: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """What whole models taught (``cost/residual.py``): a factor for each part of a pass, and a smooth rest.

    ``points`` are the figures of the models it was fitted to and ``weights`` theirs in the smooth rest.
    """

    scales: Mapping[str, float]
    points: tuple[tuple[float, ...], ...] = ()
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.points) != len(self.weights):
            raise SpecError("needs as many weights as points", field="weights")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """Calibration's own whole models in one phase, a row each, so that later learning starts from them.

    Rows of ``parts`` are seconds in the order of ``cost.pricing.PARTS``, of ``figures`` those of ``cost.residual``.
    """

    parts: tuple[tuple[float, ...], ...]
    figures: tuple[tuple[float, ...], ...]
    median_s: tuple[float, ...]
    p99_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thermal:
    """How speed decays under load: time per token rises from its cold value to ``1 / sustained_share`` times that.

    It rises as ``1 - exp(-t / time_constant_s)``; ``throttle_s`` is when half of the rise is there, None where nothing
    was lost.
    """

    sustained_share: float  # of the cold speed that is left after long load
    time_constant_s: float
    throttle_s: float | None
    observed_s: float  # how long it was watched

    def __post_init__(self) -> None:
        if not 0 < self.sustained_share <= 1:
            raise SpecError(f"must be a share of the cold speed, not {self.sustained_share}", field="sustained_share")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineProfile:
    """Fitted rates. ``terms["matmul.fp32.vector"]["k"]`` is seconds per unit of that feature (``cost/terms.py``)."""

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
    checks: Mapping[str, CheckError]  # "prefill", "decode", "memory"
    roofs: Mapping[str, float] = field(default_factory=dict)  # bytes/s by level, as measured
    peaks: Mapping[str, float] = field(default_factory=dict)  # FLOP/s by weight format, best seen
    clean: bool = True
    notes: tuple[str, ...] = ()
    anchors: Mapping[str, float] = field(default_factory=dict)  # seconds of fixed work, against which drift is told
    residuals: Mapping[str, Residual] = field(default_factory=dict)  # by phase
    lessons: Mapping[str, Lessons] = field(default_factory=dict)  # by phase
    learned_from: int = 0  # measured models beyond calibration's own
    thermal: Thermal | None = None

    @property
    def digest(self) -> str:
        """Identity of the rates."""
        return digest(self)

    def rates(self, model: str) -> Mapping[str, float]:
        """The fitted rates of one kind of operator.

        Raises:
            Unsupported: This profile has none.
        """
        try:
            return self.terms[model]
        except KeyError:
            raise Unsupported(
                f"the profile of {self.machine.name} in {self.runtime} has no rates for {model}; "
                f"run: chipwise calibrate (it has: {', '.join(sorted(self.terms))})"
            ) from None

    @property
    def check_errors(self) -> str:
        """One line a phase: how far predictions were off on models that were not fitted."""
        return "\n".join(
            f"{name}: mean error {check.mape:.1%} over {check.models} models that were not fitted"
            + ("" if check.kendall_tau is None else f", rank agreement {check.kendall_tau:.2f}")
            for name, check in self.checks.items()
        )

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
    def from_data(cls, data: Any, *, file: str | None = None) -> MachineProfile:
        """The profile that ``data`` describes."""
        if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
            raise SpecError(f"not a machine profile of this version ({SCHEMA}); run: chipwise calibrate", file=file)
        return build(cls, {key: value for key, value in data.items() if key != "schema"}, file=file)
