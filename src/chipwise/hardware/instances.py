"""Cloud machines by their rental names: chip, number of chips, price.

``p5.48xlarge`` has eight H100s; the suffix ``-spot`` selects the spot price.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chipwise.core.record import Record

DATA = Path(__file__).parent / "instances.yaml"
SPOT = "-spot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A cloud machine, which can only be rented as a whole, with its price in dollars per hour if known."""

    name: str
    chip: str
    chips: int
    usd_per_h: float | None
    source: str

    @property
    def said(self) -> str:
        """A description such as ``p5.48xlarge: 8 x h100-sxm, rented together, $55.04/h``."""
        together = ", rented together" if self.chips > 1 else ""
        price = "price unknown" if self.usd_per_h is None else f"${self.usd_per_h:,.2f}/h"
        return f"{self.name}: {self.chips} x {self.chip}{together}, {price}"

    def rented(self, chips: int) -> int:
        """Number of machines to rent for ``chips`` chips."""
        return -(-chips // self.chips)


@functools.cache
def _known() -> Mapping[str, Instance]:
    found = {}
    clouds = Record.read(DATA)
    for cloud in map(clouds.record, clouds):
        machines, source = cloud.record("machines"), cloud.get("source", str)
        for name in machines:
            each = machines.record(name)
            chip, chips = each.get("chip", str), each.get("chips", int)
            for suffix, field in (("", "usd_per_h"), (SPOT, "spot_usd_per_h")):
                usd_per_h = each.get(field, float, None)
                found[(name + suffix).lower()] = Instance(
                    name=name + suffix, chip=chip, chips=chips, usd_per_h=usd_per_h, source=source
                )
    return found


def named(name: str) -> Instance | None:
    """The cloud machine called ``name``; None if there is no such machine."""
    key = name.strip().lower()
    return _known().get(key) or _known().get(f"standard_{key}")


def paid(device: str, chips: int) -> int:
    """Number of chips to pay for if ``chips`` are needed: cloud machines can only be rented as a whole."""
    machine = named(device)
    return chips if machine is None else machine.rented(chips) * machine.chips


def counted(device: str, chips: int) -> str:
    """The number of chips as text: ``9 x l40s``, or ``2 x p5.48xlarge (9 of 16 chips)`` for rented machines."""
    machine = named(device)
    if machine is None or machine.chips == 1:
        return f"{chips} x {device}"
    machines = machine.rented(chips)
    return f"{machines} x {device} ({chips} of {machines * machine.chips} chips)"
