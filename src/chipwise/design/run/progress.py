"""Progress of a running search, as the command line shows it, and ``search()`` in a terminal or a notebook."""

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
        """Seconds of waiting left on idle cores, if the whole budget is used; NaN if the budget is not a time."""
        return math.nan if self.unit == "tokens" else max(0.0, self.budget - self.spent) / self.workers


Observer = Callable[[Status], None]


def silent(status: Status) -> None:
    """The observer that shows nothing."""


UNITS: dict[Charged, tuple[str, str]] = {
    "cpu": ("CPU-s", "CPU time"),
    "gpu": ("GPU-s", "GPU time"),
    "tokens": ("tokens", "tokens"),
}
EVERY_S = 0.5  # between two drawings of a line
WIDTH = 110  # characters of a line that is drawn again


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
    """The least loss so far, in the task's metric."""
    return f"{status.metric.text(status.best_loss or 0.0)} {status.metric.short or status.metric.title}"


def _clock(status: Status) -> str:
    """Spent and total budget, such as ``[ 12/100 CPU-s]``."""
    if status.unit == "tokens":
        return f"[{amount_of(status.spent, status)} of {amount_of(status.budget, status)} tokens]"
    return f"[{status.spent:5.0f}/{status.budget:.0f} {UNITS[status.unit][0]}]"


def amount_of(value: float, status: Status) -> str:
    """An amount of the budget as text."""
    return units.show(value, "count" if status.unit == "tokens" else "time")


def seen(stream: TextIO | None = None) -> Observer:
    """An observer that redraws one line in a terminal or notebook; :func:`silent` elsewhere.

    Args:
        stream: Where it draws; standard error in a terminal, standard output in a notebook.
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
    """One line that is rewritten at each new phase and every half second."""

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
