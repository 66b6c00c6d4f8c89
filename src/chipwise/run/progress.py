"""What a search tells while it runs. The command line draws it; the default keeps silent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Status:
    """Where a search stands; one object is updated in place and handed to the observer on each change."""

    phase: str = "starting"
    detail: str = ""
    priced: int = 0
    trained: int = 0
    training: int = 0
    measured: int = 0
    failed: int = 0
    best_bits_per_byte: float | None = None
    best: str = ""
    spent_cpu_s: float = 0.0
    budget_cpu_s: float = 0.0
    workers: int = 1
    done: bool = False

    @property
    def left_s(self) -> float:
        """Seconds of waiting left on idle cores, if the whole budget is used."""
        return max(0.0, self.budget_cpu_s - self.spent_cpu_s) / self.workers


Observer = Callable[[Status], None]


def silent(status: Status) -> None:
    """The observer that shows nothing."""
