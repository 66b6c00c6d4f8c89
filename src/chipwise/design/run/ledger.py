"""Records the CPU time of a run by phase, including all child processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import psutil

from chipwise.core.files import read_json, write_json
from chipwise.design.run.footprint import PowerMeter
from chipwise.errors import InputError

POWER = "power.json"  # file with the sums of the power meter, in the folder of the ledger's file


class Ledger:
    """CPU seconds spent by phase, including those before the run was resumed; ``power`` is the processor's power meter.

    Args:
        before: CPU seconds that each phase had spent before the run was resumed, as stored in the study.
        file: File in which the ledger is saved during a phase. If the search was killed, it is newer than ``before``.
        power: The power meter's sums up to the time at which the run was resumed; used if there is no file.
    """

    def __init__(
        self, before: dict[str, float], *, file: Path | None = None, power: Mapping[str, float] | None = None
    ) -> None:
        self.spent = dict(before)
        self._file = file
        saved = _read(file)
        for phase, seconds in saved.items():
            self.spent[phase] = max(seconds, self.spent.get(phase, 0.0))
        self._saved_s = sum(self.spent.values())
        self.power = PowerMeter({**(power or {}), **power_of(file)})
        self._phase: str | None = None
        self._mark = self._used()

    def begin(self, phase: str) -> None:
        """Ends the current phase and begins ``phase``."""
        self.settle()
        self._phase = phase

    def settle(self) -> dict[str, float]:
        """Adds the CPU time since the last call; returns the CPU seconds by phase."""
        used = self._used()
        if self._phase is not None:
            self.spent[self._phase] = self.spent.get(self._phase, 0.0) + max(0.0, used - self._mark)
        self._mark = used
        self.power.settle()
        return self.spent

    def save(self) -> dict[str, float]:
        """Adds the CPU time since the last call and writes the file; returns the CPU seconds by phase.

        Raises:
            StorageError: The disk is full.
        """
        spent = dict(self.settle())
        if self._file is not None:
            write_json(self._file, spent)
            if self.power.held["busy_s"]:
                write_json(self._file.with_name(POWER), self.power.held)
        self._saved_s = sum(spent.values())
        return spent

    def saved_total_s(self, *, at_least_s: float) -> float:
        """Total CPU seconds in the last save; saves again first if ``at_least_s`` or more have been spent since."""
        if self.total_s - self._saved_s >= at_least_s:
            self.save()
        return self._saved_s

    @property
    def total_s(self) -> float:
        """Total CPU seconds spent so far."""
        return sum(self.settle().values())

    @staticmethod
    def _used() -> float:
        """CPU seconds of this process and of its children, finished or running."""
        times = os.times()
        total = times.user + times.system + times.children_user + times.children_system
        for child in psutil.Process().children(recursive=True):
            try:
                one = child.cpu_times()
            except psutil.Error:
                continue
            total += one.user + one.system + one.children_user + one.children_system
        return total


def power_of(file: Path | None) -> dict[str, float]:
    """The power meter's sums when the ledger was last saved to ``file``; empty without an energy counter."""
    return {} if file is None else _read(file.with_name(POWER))


def _read(file: Path | None) -> dict[str, float]:
    """Reads a file written by :meth:`Ledger.save`; empty if it is missing or damaged."""
    if file is None or not file.exists():
        return {}
    try:
        held = read_json(file)
    except InputError:
        return {}
    if not isinstance(held, dict):
        return {}
    return {str(phase): float(value) for phase, value in held.items() if isinstance(value, int | float)}
