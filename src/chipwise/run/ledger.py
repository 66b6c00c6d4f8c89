"""Where the CPU time of a run goes: this process and all its children, phase by phase."""

from __future__ import annotations

import os

import psutil


class Ledger:
    """CPU seconds spent by phase, earlier sittings of the same run included.

    Args:
        before: What earlier sittings spent.
    """

    def __init__(self, before: dict[str, float]) -> None:
        self.spent = dict(before)
        self._phase: str | None = None
        self._mark = self._used()

    def begin(self, phase: str) -> None:
        """Ends the phase under way and begins ``phase``."""
        self.settle()
        self._phase = phase

    def settle(self) -> dict[str, float]:
        """Books what was used since the last time; returns the books."""
        used = self._used()
        if self._phase is not None:
            self.spent[self._phase] = self.spent.get(self._phase, 0.0) + max(0.0, used - self._mark)
        self._mark = used
        return self.spent

    @property
    def total_s(self) -> float:
        """All that was spent so far."""
        return sum(self.settle().values())

    @staticmethod
    def _used() -> float:
        """CPU seconds of this process, of its children that ended, and of those that live."""
        times = os.times()
        total = times.user + times.system + times.children_user + times.children_system
        for child in psutil.Process().children(recursive=True):
            try:
                one = child.cpu_times()
            except psutil.Error:
                continue
            total += one.user + one.system + one.children_user + one.children_system
        return total
