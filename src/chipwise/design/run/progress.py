"""Progress of a running search, for the command line and for ``search()`` in terminals and notebooks."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from chipwise.core import units
from chipwise.design.run.budget_spec import Charged
from chipwise.training.tasks.metric import BITS_PER_BYTE, Metric


@dataclass
class Status:
    """State of a search. One object is updated in place and passed to the observer on each change."""

    phase: str = "starting"
    detail: str = ""
    priced: int = 0
    trained: int = 0
    training: int = 0
    measured: int = 0
    failed: int = 0
    best_loss: float | None = None  # lowest loss so far
    metric: Metric = BITS_PER_BYTE  # metric in which progress is shown
    best: str = ""
    unit: Charged = "cpu"  # unit of the next two fields: CPU or GPU seconds, or tokens
    spent: float = 0.0
    budget: float = 0.0
    workers: int = 1
    done: bool = False

    @property
    def left_s(self) -> float:
        """Expected seconds until a time budget is used up, on otherwise idle cores; NaN for other budgets."""
        return math.nan if self.unit == "tokens" else max(0.0, self.budget - self.spent) / self.workers


Observer = Callable[[Status], None]


def silent(status: Status) -> None:
    """An observer that shows nothing."""


UNITS: dict[Charged, tuple[str, str]] = {
    "cpu": ("CPU-s", "CPU time"),
    "gpu": ("GPU-s", "GPU time"),
    "tokens": ("tokens", "tokens"),
}
EVERY_S = 0.5  # seconds between updates of the line
WIDTH = 110  # characters of the line


def line_of(status: Status) -> str:
    """The status in one line."""
    if not status.priced and not status.trained:
        return f"{_clock(status)} {status.phase}" + (f": {status.detail}" if status.detail else "")
    best = "no best yet" if status.best_loss is None else f"best {best_of(status)}"
    return (
        f"{_clock(status)} {status.phase}: {status.priced:,} priced, "
        f"{status.trained} trained, {status.measured} measured, {best}"
        + (f"; {status.detail}" if status.detail else "")
    )


def best_of(status: Status) -> str:
    """Text with the lowest loss so far, in the task's metric."""
    return f"{status.metric.text(status.best_loss or 0.0)} {status.metric.short or status.metric.title}"


def _clock(status: Status) -> str:
    """Spent and total budget, such as ``[ 12/100 CPU-s]``."""
    if status.unit == "tokens":
        return f"[{amount_of(status.spent, status)} of {amount_of(status.budget, status)} tokens]"
    return f"[{status.spent:5.0f}/{status.budget:.0f} {UNITS[status.unit][0]}]"


def amount_of(value: float, status: Status) -> str:
    """An amount in the budget's unit, as text."""
    return units.show(value, "count" if status.unit == "tokens" else "time")


def seen(stream: TextIO | None = None) -> Observer:
    """Returns an observer that redraws one line in a terminal or notebook, or :func:`silent` if there is neither.

    Args:
        stream: Output stream. Default: standard error in a terminal, standard output in a notebook.
    """
    if stream is None:
        stream = sys.stdout if _in_notebook() else sys.stderr
        if not (_in_notebook() or stream.isatty()):
            return silent
    return _Line(stream)


def _in_notebook() -> bool:
    found = sys.modules.get("IPython")
    shell = None if found is None else found.get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


class _Line:
    """Observer that rewrites one line at each new phase and every half second."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._phase, self._drawn_s = stream, "", -math.inf

    def __call__(self, status: Status) -> None:
        now = time.monotonic()
        if status.done:
            self._stream.write("\r" + " " * WIDTH + "\r")
        elif status.phase != self._phase or now - self._drawn_s >= EVERY_S:
            self._phase, self._drawn_s = status.phase, now
            self._stream.write("\r" + line_of(status)[:WIDTH].ljust(WIDTH))
        self._stream.flush()
