"""Progress reports of a training run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A progress report of a training run."""

    cpu_s: float
    cpu_budget_s: float | None  # None if the budget is in steps
    tokens: int
    loss: float | None  # loss of recent training batches
    share: float  # share of the budget that is spent


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProgress(Update):
    """A progress report of a training run, with throughput."""

    steps: int
    tokens_per_s: float
    mfu: float | None  # share of peak FLOP/s; None if the peak is not known
    left_s: float  # seconds until the budget is spent, at the current pace
