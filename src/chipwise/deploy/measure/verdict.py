"""Verdict: whether the machine was quiet during a measurement, by rules over readings taken before, during and after
it.

Slow samples are never dropped: a whole measurement is either clean, or unclean with reasons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chipwise.core import units

LIMITS = {
    "lost": 0.04,  # share of wall time in which the measured process did not run
    "others": 0.04,  # share of the measured cores' time that other processes used
    "steal": 0.01,  # share of the measured cores' time that the hypervisor took away
    "switches_per_s": 100.0,  # context switches per second that took the process off its core
    "reference_spread": 1.5,  # 90th over 10th percentile of reference work timed between requests
    "elsewhere": 0.3,  # share of the other cores' time in use; they share caches, memory and clocks
    "waited": 1.05,  # median decode step in wall time over processor time
    "dispersion": 2.0,  # 90th percentile of decode steps over their median
    "two_speeds": 1.15,  # ratio between the slower and the faster of two groups of decode steps
    "drift": 1.15,  # fastest reference work now over that at calibration, or its inverse
}
_SHARES = ("lost", "others", "steal", "elsewhere")  # displayed in percent
_REASONS = {
    "lost": "the process waited for a core {0} of the time (limit {1})",
    "others": "other processes used {0} of the measured cores (limit {1})",
    "steal": "the hypervisor took {0} of the measured cores (limit {1})",
    "switches_per_s": "the process was pushed off its core {0:.0f} times a second (limit {1:.0f})",
    "reference_spread": "reference work between requests varied by a factor of {0:.2f} (limit {1:.2f})",
    "elsewhere": "the other cores were busy for {0} of the time (limit {1})",
    "waited": "decode steps took {0:.2f} times their processor time (limit {1:.2f})",
    "dispersion": "one decode step in ten took {0:.2f} times the median or more (limit {1:.2f})",
    "two_speeds": "decode steps ran at two speeds, a factor of {0:.2f} apart (limit {1:.2f})",
    "drift": "the machine's speed has changed by a factor of {0:.2f} since it was calibrated (limit {1:.2f})",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``clean`` if no limit is exceeded. ``score`` is the worst ratio of a reading to its limit; lower is quieter.

    ``slow``: the machine never reached the speed it had at calibration.
    """

    clean: bool
    reasons: tuple[str, ...]
    score: float
    slow: bool = False

    @property
    def rank(self) -> tuple[bool, float]:
        """Sort key of an attempt, lower is better: being slow throughout is worse than being disturbed at times."""
        return self.slow, self.score


def judge(readings: Mapping[str, float | None]) -> Verdict:
    """The verdict on readings named as in ``LIMITS``. Readings that are None or missing are ignored."""
    known = {name: value for name in LIMITS if (value := readings.get(name)) is not None}
    reasons = tuple(_reason(name, value) for name, value in known.items() if value > LIMITS[name])
    score = max((value / LIMITS[name] for name, value in known.items()), default=0.0)
    return Verdict(clean=not reasons, reasons=reasons, score=score, slow=known.get("drift", 0.0) > LIMITS["drift"])


def _reason(name: str, value: float) -> str:
    both = (value, LIMITS[name])
    if name in _SHARES:
        return _REASONS[name].format(*(units.show(share, "share") for share in both))
    return _REASONS[name].format(*both)


def spread(seconds: Sequence[float]) -> float | None:
    """Ratio of the 90th to the 10th percentile of ``seconds``; None if there are fewer than five."""
    if len(seconds) < 5:
        return None
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return ordered[round(0.9 * last)] / ordered[round(0.1 * last)]
