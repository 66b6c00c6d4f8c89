"""Drift: how much slower the machine is than when it was calibrated, from reference work timed then and now.

The speed of a machine varies with other load on the chip, clock and heat. Reference work (``reference_work.py``) is
timed at calibration, stored in the profile, and timed again during every measurement. The ratio corrects measured
latencies to the speed at calibration; samples are stored uncorrected.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from chipwise.errors import SpecError
from chipwise.model.ops.workload import Phase

REFERENCE = ("compute_s", "memory_s", "reference_prefill_s", "reference_decode_s")
FLOOR = 0.01  # half-width in logarithms that remains even if all reference work agrees
NOISE = 1.1
"""Scatter of reference work on a quiet machine, as a factor (quartiles 0.96 and 1.02, most within 0.91 to 1.12,
over 60 measurements). In a clean measurement, drifts smaller than this are ignored."""
SCATTER = 0.06
"""Standard deviation of ln(apparent drift) between processes on a machine that is in use but has not drifted. A typical
apparent drift is 4 %; models' times change by only a fifth of that (median slope in 16 series of 40 values or more)."""
DOUBT = 0.15  # relative share of ln(drift) added to the interval, because reference work is not the model
OLD_NAMES = {"prefill": "prefill_slowdown", "decode": "decode_slowdown"}  # names in measurements of older versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Time of reference work now, divided by its time at calibration, for each phase.

    The 90 % interval of each ratio is from ``exp(-log_halfwidth)`` to ``exp(log_halfwidth)`` times the ratio.
    """

    prefill_slowdown: float
    decode_slowdown: float
    log_halfwidth: float

    def __post_init__(self) -> None:
        for field in OLD_NAMES.values():
            if not (getattr(self, field) > 0 and math.isfinite(getattr(self, field))):
                raise SpecError(f"must be a positive factor, not {getattr(self, field)}", field=field)

    @property
    def size(self) -> float:
        """The larger of both phases' drifts, as a factor ≥ 1."""
        return math.exp(max(abs(math.log(self.prefill_slowdown)), abs(math.log(self.decode_slowdown))))

    def shrunken(self, phase: Phase) -> float:
        """The drift of ``phase``, shrunk towards 1; small drifts are mostly random variation of the reference work.

        >>> drifted = Drift(prefill_slowdown=1.02, decode_slowdown=1.5, log_halfwidth=0.1)
        >>> [round(drifted.shrunken(phase), 3) for phase in (Phase.PREFILL, Phase.DECODE)]
        [1.002, 1.487]
        """
        log = math.log(self.prefill_slowdown if phase is Phase.PREFILL else self.decode_slowdown)
        return math.exp(log**3 / (log**2 + SCATTER**2))


def drift(now: Mapping[str, float], calibrated: Mapping[str, float]) -> Drift | None:
    """Drift between two sets of median times of reference work; None if no time of ``REFERENCE`` is in both.

    If both sets have the reference model, which runs in the same runtime, its phases are compared. Otherwise arithmetic
    represents prefill, and arithmetic and memory together represent decode. The interval is wider if ratios disagree.
    """
    ratios = {
        name: now[name] / calibrated[name] for name in REFERENCE if now.get(name, 0) > 0 and calibrated.get(name, 0) > 0
    }
    if not ratios:
        return None
    pure = [ratios[name] for name in ("compute_s", "memory_s") if name in ratios]
    everything = _mean(pure or list(ratios.values()))
    prefill = ratios.get("reference_prefill_s", ratios.get("compute_s", everything))
    decode = ratios.get("reference_decode_s", everything)
    apart = max(abs(math.log(a / b)) for a in (prefill, decode) for b in (prefill, decode, everything))
    size = max(abs(math.log(prefill)), abs(math.log(decode)))
    return Drift(prefill_slowdown=prefill, decode_slowdown=decode, log_halfwidth=FLOOR + DOUBT * size + apart / 4)


def _mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))
