"""Computes a fleet's monthly cost while its load grows, for renting and for buying the machines.

A fleet grows in whole replicas, in proportion to the load. Bought machines are paid for in the month in which they are
added; electricity is paid for in addition. Rent includes electricity. The break-even is the first month from which
the total cost of buying never exceeds that of renting.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from chipwise.core.results import Result
from chipwise.design.fleet.answer import FleetPlan
from chipwise.errors import SpecError, counted, short
from chipwise.predict.cost.ownership import HOURS_PER_MONTH

_GROWTH = re.compile(r"^\s*([+-]?\d+(?:\.\d+)?)\s*%\s*/\s*(month|year)\s*$")


def growth_of(text: str) -> float:
    """Parses growth such as ``8 %/month`` or ``150 %/year``; returns the growth per month as a fraction of the load.

    Raises:
        SpecError: The text is not a percentage per month or year, or the growth is outside -50 to 1,000 % a month.

    >>> round(growth_of("1200 %/year"), 4)
    0.2383
    """
    found = _GROWTH.match(text)
    if found is None:
        raise SpecError(f"must be a share per month or year, such as '8 %/month', not {short(text)}", field="growth")
    share = float(found[1]) / 100
    if share <= -1:
        raise SpecError(f"a load cannot shrink by 100 % or more, but growth is {short(text)}", field="growth")
    each = share if found[2] == "month" else (1 + share) ** (1 / 12) - 1
    if not -0.5 <= each <= 10:
        raise SpecError(f"must be from -50 to 1,000 % a month, not {short(text)}", field="growth")
    return each


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetToBill:
    """The machines that serve a load today, and their prices.

    The load is served by ``devices`` machines, in replicas of ``per_replica`` machines. Unknown numbers are None.
    """

    label: str
    devices: int
    per_replica: int = 1
    usd_per_h: float | None = None  # rent of all machines together
    power_w: float | None = None  # power of all machines together
    purchase_usd: float | None = None  # price of one machine
    usd_per_kwh: float | None = None
    hours: float = HOURS_PER_MONTH  # hours in a month in which the machines run


@dataclass(frozen=True, slots=True, kw_only=True)
class Month:
    """One month of a bill. ``load`` is relative to the first month; a cost is None if its price is unknown."""

    month: int
    load: float
    devices: int
    rent_usd: float | None
    purchase_usd: float | None
    electricity_usd: float | None

    @property
    def owning_usd(self) -> float | None:
        """Dollars for purchases and electricity in this month; None if either is unknown."""
        if self.purchase_usd is None or self.electricity_usd is None:
            return None
        return self.purchase_usd + self.electricity_usd


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Bill(Result):
    """The bill by month. ``break_even`` is the number of the break-even month; None if there is none."""

    fleet: FleetToBill
    months: tuple[Month, ...]
    break_even: int | None
    notes: tuple[str, ...] = ()

    def headline(self) -> str:
        """Compares the first month with the last, and names the break-even."""
        first, last = self.months[0], self.months[-1]
        parts = []
        for name, before, after in (
            ("rent", first.rent_usd, last.rent_usd),
            ("electricity", first.electricity_usd, last.electricity_usd),
        ):
            if before is None or after is None:
                continue
            grown = "" if round(before) == round(after) else f" at first, ${after:,.0f} in month {last.month}"
            parts.append(f"{name} ${before:,.0f} a month{grown}")
        if self.break_even is not None:
            parts.append(f"buying is cheaper from month {self.break_even} on")
        elif first.owning_usd is not None and first.rent_usd is not None:
            parts.append(f"buying is not cheaper within {counted(len(self.months), 'month')}")
        return f"{self.fleet.label}: {'; '.join(parts) or 'price unknown'}"

    def rows(self) -> list[Mapping[str, object]]:
        """One row per month."""
        return [asdict(each) for each in self.months]


def fleet_of(plan: FleetPlan, *, power_w: float | None) -> FleetToBill:
    """Returns the cheapest fleet of a plan, for :func:`billed`.

    ``power_w`` is the power of one device; None: the power in its data sheet.
    """
    best = plan.best
    second = best.second
    devices = best.devices + (second.devices if second else 0)
    return FleetToBill(
        label=best.label,
        devices=devices,
        per_replica=devices if second else best.devices // best.replicas,
        usd_per_h=best.usd_per_h,
        power_w=best.board_power_w if power_w is None else devices * power_w,
    )


def billed(fleet: FleetToBill, *, growth: float, months: int) -> Bill:
    """Computes the bill for ``months`` months, in which the load grows by the share ``growth`` each month.

    Raises:
        SpecError: The number of months is out of range.
    """
    if not 1 <= months <= 600:
        raise SpecError(f"must be from 1 to 600, not {months}", field="months")
    rows: list[Month] = []
    owned = rented = bought = 0.0
    break_even: int | None = None
    for number in range(1, months + 1):
        load = (1 + growth) ** (number - 1)
        replicas = fleet.devices / fleet.per_replica
        devices = max(1, math.ceil(replicas * load - 1e-9)) * fleet.per_replica
        share, added = devices / fleet.devices, max(devices - bought, 0)
        bought += added
        watts, tariff = fleet.power_w, fleet.usd_per_kwh
        electricity = None if watts is None or tariff is None else watts / 1000 * share * fleet.hours * tariff
        row = Month(
            month=number,
            load=load,
            devices=devices,
            rent_usd=None if fleet.usd_per_h is None else fleet.usd_per_h * share * fleet.hours,
            purchase_usd=None if fleet.purchase_usd is None else added * fleet.purchase_usd,
            electricity_usd=electricity,
        )
        rows.append(row)
        if row.rent_usd is not None and row.owning_usd is not None:
            rented, owned = rented + row.rent_usd, owned + row.owning_usd
            if owned > rented:
                break_even = None  # machines that were added since have made buying more expensive again
            elif break_even is None:
                break_even = number
    lacking = {
        "rent": fleet.usd_per_h is None,
        "purchase price": fleet.purchase_usd is None,
        "electricity": fleet.power_w is None or fleet.usd_per_kwh is None,
    }
    unknown = [name for name, missing in lacking.items() if missing]
    notes = (f"unknown: {', '.join(unknown)}",) if unknown else ()
    return Bill(fleet=fleet, months=tuple(rows), break_even=break_even, notes=notes)
