"""MFU and MBU of designs: a pass's minimum seconds at the device's peak, divided by predicted or measured seconds."""

from __future__ import annotations

from collections.abc import Mapping

from chipwise.design.limits import USED
from chipwise.design.targets.chance import Bounds


def share_within(least_s: float, seconds: Bounds) -> Bounds:
    """The minimum seconds at the device's peak divided by ``seconds`` (value and interval); at most 1."""
    value, low, high = (None if end is None else min(least_s / end, 1.0) for end in seconds)
    return (value, high, low)


def measured_shares(predicted: Mapping[str, Bounds], measured: Mapping[str, float]) -> dict[str, float]:
    """MFU and MBU at measured medians.

    The minimum seconds are the product of a predicted share and the predicted seconds; they do not depend on
    measurements.
    """
    found = {}
    for name, median in zip(USED, ("ttft_p50", "tpot_p50"), strict=True):
        step = "itl_p50" if name == "mbu" and "itl_p50" in predicted else median
        share, seconds = (predicted.get(each, (None,))[0] for each in (name, step))
        if share is not None and seconds is not None and median in measured:
            found[name] = share * seconds / measured[median]
    return found
