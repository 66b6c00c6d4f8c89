"""The cost of one working hour of a machine that you own: purchase price spread over its lifetime, plus electricity.

    dollars per hour = purchase / (years * 8,760 * share of hours in use) + kilowatts * tariff

Power drawn while the machine is idle is not counted. Prices in other currencies need an exchange rate. If a number is
unknown, an error is raised.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from chipwise.core import units
from chipwise.errors import SpecError, short

HOURS_PER_YEAR, HOURS_PER_MONTH = 8_760.0, 730.0
MOST_G_PER_KWH = 2_000.0  # lignite, the dirtiest fuel, emits about 1,200
_MONEY = re.compile(
    r"^\s*(?P<amount>\d[\d_,]*(?:\.\d+)?)\s*(?P<currency>[A-Z]{3})\s*(?P<per>/\s*kWh)?\s*(?:@\s*(?P<rate>\d+(?:\.\d+)?))?\s*$"
)


def dollars(text: str, field: str, *, per_kwh: bool = False) -> float:
    """Reads dollars from text such as ``1800 USD`` or ``0.30 EUR/kWh @ 1.16``, where a euro costs 1.16 dollars.

    Raises:
        SpecError: ``text`` has a different form, the amount is not above zero, or the exchange rate is missing.

    >>> dollars("0.30 EUR/kWh @ 1.20", "electricity", per_kwh=True)
    0.36
    """
    example = "0.30 USD/kWh" if per_kwh else "1800 USD"
    found = _MONEY.match(text)
    if found is None or (found["per"] is not None) != per_kwh:
        raise SpecError(f"must be an amount with its currency, such as {example}, not {short(text)}", field=field)
    amount = float(found["amount"].replace("_", "").replace(",", ""))
    if found["currency"] != "USD" and found["rate"] is None:
        raise SpecError(
            f"prices must be in dollars; add the dollars that one {found['currency']} costs, such as "
            f"{text.strip()} @ 1.1",
            field=field,
        )
    value = round(amount * float(found["rate"] or 1.0), 12)
    if not 0 < value < math.inf:
        raise SpecError(f"must be above zero, not {short(text)}", field=field)
    return value


def grams_per_kwh(text: object, field: str) -> float:
    """Reads a grid's carbon intensity in grams of CO2 per kilowatt-hour, from text such as ``350 g/kWh``.

    Raises:
        SpecError: ``text`` has a different form, or the figure is negative or higher than any grid's.
    """
    value = units.parse_field(text, "carbon", field)
    if not 0 <= value <= MOST_G_PER_KWH:
        raise SpecError(f"must be between 0 and {MOST_G_PER_KWH:,.0f} g/kWh, not {short(text)}", field=field)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """A machine that the user owns: purchase price, years of use, electricity tariff, and power under load.

    Without a ``purchase_usd``, only electricity counts. ``use`` is the share of all hours in which the machine works.
    """

    purchase_usd: float | None
    years: float
    usd_per_kwh: float
    power_w: float
    use: float = 1.0

    def __post_init__(self) -> None:
        for name, most in (("years", 50.0), ("use", 1.0)):
            if not 0 < getattr(self, name) <= most:
                raise SpecError(f"must be above 0 and at most {most:g}, not {getattr(self, name):g}", field=name)

    @property
    def electricity_usd_per_h(self) -> float:
        """Electricity cost of one working hour, in dollars."""
        return self.power_w / 1000 * self.usd_per_kwh

    @property
    def purchase_usd_per_h(self) -> float:
        """Part of the purchase price that falls on one working hour, in dollars."""
        return (self.purchase_usd or 0.0) / (self.years * HOURS_PER_YEAR * self.use)

    @property
    def usd_per_h(self) -> float:
        """Total cost of one working hour, in dollars."""
        return self.purchase_usd_per_h + self.electricity_usd_per_h

    def describe(self) -> str:
        """Text such as ``$0.19/h: $0.05 of purchase over 4 years and $0.14 of electricity at 450 W``."""
        parts = [f"${self.electricity_usd_per_h:,.4g} of electricity at {units.show(self.power_w, 'power')}"]
        if self.purchase_usd is not None:
            use = "" if self.use == 1 else f", in use for {units.show(self.use, 'share')} of all hours"
            parts.insert(0, f"${self.purchase_usd_per_h:,.4g} of purchase over {self.years:g} years{use}")
        return f"${self.usd_per_h:,.4g}/h: {' and '.join(parts)}"


def from_texts(
    *, electricity: str, buy: str | None, years: float, use: float, power: str | None, board_power_w: float | None
) -> Ownership:
    """Builds an owned machine from the texts and numbers that a user gives.

    Args:
        electricity: The tariff, such as ``0.30 USD/kWh``.
        buy: The purchase price, such as ``1800 USD``. None: already paid, so it does not count.
        years: Years over which the machine is paid off.
        use: Share of all hours in which the machine works.
        power: Power under load, such as ``450 W``. Default: ``board_power_w``.
        board_power_w: Power according to the data sheet; None if unknown.

    Raises:
        SpecError: A text cannot be read, a number is out of range, or the power is unknown.
    """
    if power is None and board_power_w is None:
        raise SpecError("the data sheet lists no power; state the power under load, such as 450 W", field="power")
    watts = board_power_w if power is None else units.parse_field(power, "power", "power")
    if watts is None or not 0 < watts < math.inf:
        raise SpecError(f"must be above zero, not {short(power)}", field="power")
    return Ownership(
        purchase_usd=None if buy is None else dollars(buy, "buy"),
        years=years,
        usd_per_kwh=dollars(electricity, "electricity", per_kwh=True),
        power_w=watts,
        use=use,
    )
