"""Drift: how much slower or faster the machine is than when it was calibrated, from fixed work timed both times.

A machine has slow hours: neighbours on the same chip, another clock, heat. Work that never changes (*anchors*) is
timed at calibration and kept in the profile, and timed again inside every measurement. The ratio rescales what was
measured to the calibration's footing; samples themselves are kept as they were.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from chipwise.core.errors import SpecError
from chipwise.ops.workload import Phase

ANCHORS = ("compute_s", "memory_s", "reference_prefill_s", "reference_decode_s")
FLOOR = 0.01  # half width in logarithms that even perfect agreement leaves
NOISE = 1.1
"""Factor within which anchors scatter on a quiet machine (quartiles 0.96 and 1.02, most within 0.91 to 1.12, over 60
measurements): in a clean measurement so small a drift is no drift."""
SCATTER = 0.06
"""Standard deviation in logarithms of what anchors say where nothing drifted, from process to process on a machine in
use. There, of a drift as told (typically 4 %) models showed a fifth: the median slope of 16 series of 40 or more."""
DOUBT = 0.15  # of the drift's logarithm, added to the interval: anchors are not the model


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Time now over time at calibration, by phase; 90 % of truths lie within ``exp(±log_halfwidth)`` of it."""

    prefill: float
    decode: float
    log_halfwidth: float

    def __post_init__(self) -> None:
        for field in ("prefill", "decode"):
            if not (getattr(self, field) > 0 and math.isfinite(getattr(self, field))):
                raise SpecError(f"must be a positive factor, not {getattr(self, field)}", field=field)

    @property
    def size(self) -> float:
        """The larger of both phases' distances from no drift, as a factor ≥ 1."""
        return math.exp(max(abs(math.log(self.prefill)), abs(math.log(self.decode))))

    def believed(self, phase: Phase) -> float:
        """The factor of ``phase`` without what the anchors scatter: a small one is mostly scatter, a large one real.

        >>> drifted = Drift(prefill=1.02, decode=1.5, log_halfwidth=0.1)
        >>> [round(drifted.believed(phase), 3) for phase in (Phase.PREFILL, Phase.DECODE)]
        [1.002, 1.487]
        """
        told = math.log(self.prefill if phase is Phase.PREFILL else self.decode)
        return math.exp(told**3 / (told**2 + SCATTER**2))


def drift(now: Mapping[str, float], calibrated: Mapping[str, float]) -> Drift | None:
    """The drift between two sets of anchors' medians, seconds by the names of ``ANCHORS``; None if none is in both.

    The reference graph, which runs in the same runtime, speaks for its phase where both sets have it; else arithmetic
    speaks for prefill, and arithmetic and memory together for decode. Anchors that disagree widen the interval.
    """
    ratios = {
        name: now[name] / calibrated[name] for name in ANCHORS if now.get(name, 0) > 0 and calibrated.get(name, 0) > 0
    }
    if not ratios:
        return None
    pure = [ratios[name] for name in ("compute_s", "memory_s") if name in ratios]
    everything = _mean(pure or list(ratios.values()))
    prefill = ratios.get("reference_prefill_s", ratios.get("compute_s", everything))
    decode = ratios.get("reference_decode_s", everything)
    apart = max(abs(math.log(a / b)) for a in (prefill, decode) for b in (prefill, decode, everything))
    size = max(abs(math.log(prefill)), abs(math.log(decode)))
    return Drift(prefill=prefill, decode=decode, log_halfwidth=FLOOR + DOUBT * size + apart / 4)


def _mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))
