"""Progress of a running search. The command line shows it; the default shows nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from chipwise.run.budget_spec import Charged
from chipwise.space.metric import BITS_PER_BYTE, Metric


@dataclass
class Status:
    """State of a search; one object is updated in place and passed to the observer on each change."""

    phase: str = "starting"
    detail: str = ""
    priced: int = 0
    trained: int = 0
    training: int = 0
    measured: int = 0
    failed: int = 0
    best_loss: float | None = None  # the least loss so far
    metric: Metric = BITS_PER_BYTE  # that progress is shown in
    best: str = ""
    unit: Charged = "cpu"  # of the two that follow: CPU or GPU seconds, or tokens
    spent: float = 0.0
    budget: float = 0.0
    workers: int = 1
    done: bool = False

    @property
    def left_s(self) -> float:
        """Seconds of waiting left on idle cores, if the whole budget is used; NaN where the budget is no time."""
        return math.nan if self.unit == "tokens" else max(0.0, self.budget - self.spent) / self.workers


Observer = Callable[[Status], None]


def silent(status: Status) -> None:
    """The observer that shows nothing."""
