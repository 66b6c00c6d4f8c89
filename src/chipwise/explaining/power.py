"""Sustained power: what serving draws of the board's limit, beyond which clocks fall."""

from __future__ import annotations

from dataclasses import dataclass

from chipwise.core import units
from chipwise.core.errors import Unsupported
from chipwise.explaining.question import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Watts of all devices, averaged over prompts' passes and decoding; at most the limit."""

    drawn_w: float
    limit_w: float

    @property
    def share(self) -> float:
        """Of the limit."""
        return self.drawn_w / self.limit_w


def drawn(case: Case) -> Drawn | None:
    """What serving draws; None where nobody publishes the board's limit, and of what does not generate."""
    energy = case.estimate.metrics.get("joules_per_token")
    if case.sheet is None or energy is None or not case.generates:
        return None
    try:
        limit_w = case.sheet.board_power_w * case.estimate.devices
    except Unsupported:
        return None
    drawn_w = energy.value * case.estimate.metrics["throughput"].value
    return Drawn(drawn_w=min(drawn_w, limit_w), limit_w=limit_w)


def sentence(found: Drawn) -> str:
    """The facts in one line."""
    return (
        f"power: about {units.show(found.drawn_w, 'power')} of {units.show(found.limit_w, 'power')} while serving, "
        f"{max(0.0, 1 - found.share):.0%} head-room before the board's limit lowers clocks"
    )
