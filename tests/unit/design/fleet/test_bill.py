"""Bills by hand: growth in whole replicas, electricity, the month of break-even, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from chipwise import api
from chipwise.design.fleet.bill import FleetToBill, billed, growth_of
from chipwise.errors import SpecError


def test_machines_in_stores_draw_their_power_around_the_clock() -> None:
    found = api.bill(machines=4000, power="150 W", electricity="0.15 USD/kWh", months=2)
    assert [each.electricity_usd for each in found.months] == pytest.approx([4000 * 0.150 * 730 * 0.15] * 2)
    assert found.months[0].rent_usd is None  # unknown, not nothing
    assert found.notes == ("unknown: rent, purchase price",)
    half = api.bill(machines=4000, power="150 W", electricity="0.15 USD/kWh", months=1, hours_per_day=12)
    assert half.months[0].electricity_usd == pytest.approx(found.months[0].electricity_usd / 2)


def test_a_fleet_grows_in_whole_replicas() -> None:
    fleet = FleetToBill(label="two of two", devices=4, per_replica=2, usd_per_h=8.0)
    found = billed(fleet, growth=0.5, months=4)
    assert [each.devices for each in found.months] == [4, 6, 10, 14]  # 2, 3, 4.5 and 6.75 replicas
    assert [each.rent_usd for each in found.months] == pytest.approx([730 * 2.0 * n for n in (4, 6, 10, 14)])
    shrinking = billed(fleet, growth=-0.5, months=3)
    assert [each.devices for each in shrinking.months] == [4, 2, 2]


def test_buying_breaks_even_when_rent_has_paid_for_it() -> None:
    # one machine: 7,300 dollars of rent a month, or 20,000 at once and 730 a month for 1 kW: 20,000 / 6,570 = 3.04
    fleet = FleetToBill(label="one", devices=1, usd_per_h=10.0, power_w=1000.0, purchase_usd=20_000.0, usd_per_kwh=1.0)
    found = billed(fleet, growth=0.0, months=6)
    assert found.break_even == 4
    assert "buying is cheaper from month 4 on" in found.headline()
    assert billed(fleet, growth=0.0, months=3).break_even is None
    doubling = billed(fleet, growth=1.0, months=4)  # each month buys as many machines as there are
    assert [each.purchase_usd for each in doubling.months] == [20_000, 20_000, 40_000, 80_000]
    assert doubling.break_even is None


def test_the_bill_of_a_plan_is_that_of_its_best_fleet(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = api.plan("Qwen/Qwen3-0.6B", rate=2, devices=["l4"], tp=[1], requests=50, out=path)
    for given in (plan, path):
        found = api.bill(given, growth="8 %/month", months=3, electricity="0.30 USD/kWh")
        assert found.months[0].rent_usd == pytest.approx(730 * plan.best.usd_per_h)
        assert found.months[0].electricity_usd == pytest.approx(0.730 * plan.best.board_power_w * 0.30)
        assert [each.load for each in found.months] == pytest.approx([1, 1.08, 1.08**2])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "machines: give a plan or a number of machines"),
        ({"machines": 3}, "rent: no price is known"),
        ({"machines": 3, "electricity": "0.3 USD/kWh"}, "rent: no price is known"),
        ({"machines": 3, "rent": "2.5"}, "rent: .*no unit"),
        ({"machines": 0, "rent": "2.5 USD/h"}, "machines: must be from 1"),
        ({"machines": 3, "rent": "2.5 USD/h", "growth": "8"}, "growth: must be a share per month or year"),
        ({"machines": 3, "rent": "2.5 USD/h", "growth": "-100 %/year"}, "growth: a load cannot shrink"),
        ({"machines": 3, "rent": "2.5 USD/h", "months": 0}, "months: must be from 1 to 600"),
        ({"machines": 3, "rent": "2.5 USD/h", "hours_per_day": 25.0}, "hours_per_day: must be above 0 and at most 24"),
    ],
)
def test_a_bill_that_has_no_answer_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        api.bill(**given)  # type: ignore[arg-type]


def test_growth_of_a_year_is_that_of_its_months_together() -> None:
    assert (1 + growth_of("150 %/year")) ** 12 == pytest.approx(2.5)
    assert growth_of("8 %/month") == pytest.approx(0.08)
