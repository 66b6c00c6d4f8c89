"""Parts of a record about quality: what contenders reached on tasks, and how well early judgements ranked them."""

from __future__ import annotations

from dataclasses import dataclass

from chipwise.core.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    """What one contender reached on the held-out items of a task; ``failed`` says why it could not be asked."""

    metric: str | None = None  # accuracy or spearman
    method: str | None = None
    value: float | None = None
    low: float | None = None  # of the 95 % interval over items
    high: float | None = None
    train_items: int | None = None
    test_items: int | None = None
    confusion: tuple[tuple[int, ...], ...] = ()  # [true class][answered class], counts
    judged: str = ""  # which form answered
    failed: str | None = None

    def __post_init__(self) -> None:
        if (self.value is None) == (self.failed is None):
            raise SpecError("holds either a value or why there is none", field="value")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSummary:
    """A task of the run: what it asks, and what a bag of words reaches on the same items."""

    name: str
    classes: tuple[str, ...] = ()
    bar: TaskScore | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Kendall's rank correlation of a judgement with trainings; ``tau`` is None where there is too little to tell."""

    candidates: int
    pairs: int
    tau: float | None = None
    low: float | None = None  # of the 95 % interval over candidates
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """One cheap judgement of candidates beside what longer trainings found."""

    name: str
    overall: Agreement
    equal_latency: Agreement  # pairs of candidates within 5 % of one predicted latency


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """How well each judgement ranked the candidates that were trained for ``cpu_s``."""

    cpu_s: float
    candidates: int
    fidelities: tuple[Fidelity, ...] = ()
