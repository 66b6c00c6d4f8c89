"""Progress of commands that work in stages: the stage, its steps, and the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from chipwise.cli.output import notices
from chipwise.core import units


def silent(stage: str, done: int, total: int) -> None:
    """Prints nothing."""


class Progress:
    """A line that is redrawn in a terminal; elsewhere one line when a stage begins, then one every ten seconds.

    The remaining time is that of the current stage, at the average speed since this process began the stage.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._stage, self._printed_s, self._clock = "", 0.0, clock
        self._began = (0.0, 0)  # at the start of the stage: time, and work done before

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Shows that ``done`` of ``total`` steps of a stage are finished."""
        now = self._clock()
        if stage != self._stage:
            self._began = (now, done)
        if not notices.is_terminal and stage == self._stage and now - self._printed_s < 10:
            return
        if notices.is_terminal and self._stage and stage != self._stage:
            print(file=sys.stderr)
        self._stage, self._printed_s = stage, now
        end = "\r" if notices.is_terminal else "\n"
        print(
            f"{stage}: {done:,} of {total:,}{self._left(now, done, total)}".ljust(70),
            end=end,
            file=sys.stderr,
            flush=True,
        )

    def _left(self, now: float, done: int, total: int) -> str:
        began_s, before = self._began
        if done <= before or done >= total:
            return ""
        left_s = (now - began_s) / (done - before) * (total - done)
        return f", about {units.show(left_s, 'time', digits=2)} left"
