"""An hour of an owned machine, by hand; texts that are no money; and what estimates make of it."""

from __future__ import annotations

import re

import pytest

from chipwise import api
from chipwise.errors import SpecError
from chipwise.hardware import datasheet
from chipwise.predict.cost.ownership import Ownership, dollars


def test_an_hour_is_its_share_of_the_purchase_and_its_kilowatt_hours() -> None:
    mine = Ownership(purchase_usd=1800, years=4, usd_per_kwh=0.30, power_w=450)
    assert mine.usd_per_h == pytest.approx(1800 / (4 * 365 * 24) + 0.45 * 0.30)
    half = Ownership(purchase_usd=1800, years=4, usd_per_kwh=0.30, power_w=450, use=0.5)
    assert half.usd_per_h - mine.usd_per_h == pytest.approx(1800 / (4 * 365 * 24))  # half the hours bear the price


@pytest.mark.parametrize(
    ("text", "per_kwh", "value"),
    [
        ("1800 USD", False, 1800),
        ("1,800.50 USD", False, 1800.5),
        ("8000 EUR @ 1.16", False, 9280),
        ("0.30 USD/kWh", True, 0.3),
        ("0.28 EUR/kWh @1.16", True, 0.3248),
    ],
)
def test_money_is_read_in_dollars(text: str, per_kwh: bool, value: float) -> None:
    assert dollars(text, "buy", per_kwh=per_kwh) == pytest.approx(value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"electricity": "0.30"}, "electricity: must be an amount with its currency, such as 0.30 USD/kWh"),
        ({"electricity": "0.30 USD"}, "electricity: must be an amount"),
        ({"electricity": "0 USD/kWh"}, "electricity: must be above zero"),
        ({"electricity": "0.30 EUR/kWh"}, "electricity: prices must be in dollars; add the dollars that one EUR costs"),
        ({"buy": "1800"}, "buy: must be an amount with its currency, such as 1800 USD"),
        ({"buy": "1800 USD/kWh"}, "buy: must be an amount"),
        ({"years": 0.0}, "years: must be above 0"),
        ({"use": 1.5}, "use: must be above 0 and at most 1"),
        ({"power": "450"}, "power: .*no unit"),
        ({"device": "snapdragon-8-elite"}, "power: the data sheet lists no power"),
    ],
)
def test_what_is_no_price_is_refused_in_one_line(given: dict[str, object], said: str) -> None:
    asked = {"device": "rtx-4090", "electricity": "0.30 USD/kWh"} | given
    with pytest.raises(SpecError, match=said):
        api.owned(**asked)  # type: ignore[arg-type]


def test_dollars_a_token_follow_the_price_of_the_hour() -> None:
    sheet = api.owned("l40s", electricity="0.30 USD/kWh", buy="9000 USD", years=3, power="300 W")
    per_h = 9000 / (3 * 8760) + 0.3 * 0.3
    assert sheet.price is not None
    assert 3600 * sheet.price_usd_per_s == pytest.approx(per_h)
    rent_per_h = 3600 * datasheet.load("l40s").price_usd_per_s
    rented, owned = (api.estimate("Qwen/Qwen3-8B", device=device) for device in ("l40s", sheet))
    for name in ("usd_per_1k_tokens", "usd_per_1k_input_tokens", "usd_per_1k_output_tokens"):
        ratio = owned.metrics[name].value / rented.metrics[name].value
        assert ratio == pytest.approx(per_h / rent_per_h), name


def test_the_list_price_of_a_sheet_is_what_it_costs_to_buy() -> None:
    """1,599 USD over 4 years of 8,760 h, and 450 W at 0.30 USD/kWh."""
    listed, stated = (api.owned("rtx-4090", buy=buy, electricity="0.30 USD/kWh") for buy in ("list", "1599 USD"))
    assert 3600 * listed.price_usd_per_s == pytest.approx(1599 / (4 * 8760) + 0.45 * 0.30)
    assert listed.price_usd_per_s == pytest.approx(stated.price_usd_per_s)
    with pytest.raises(SpecError, match="buy: h100-sxm lists no purchase price; state it, such as 1800 USD"):
        api.owned("h100-sxm", buy="list", electricity="0.30 USD/kWh")


def test_every_list_price_has_a_source_with_a_date() -> None:
    priced = [sheet for sheet in datasheet.load_all() if sheet.purchase is not None]
    assert len(priced) >= 100
    for sheet in priced:
        assert 10 <= sheet.purchase.number <= 10_000, sheet.name
        assert re.search(r", (20\d\d)-[01]\d-[0-3]\d$", sheet.purchase.source), sheet.name
