"""``chipwise bill``: the monthly bills for renting and for buying a fleet."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from chipwise import api
from chipwise.api import answers
from chipwise.cli import options
from chipwise.cli.output import json_of, print_table, say, say_notes
from chipwise.core import units
from chipwise.core.layout import Table, numeric


def command(
    plan: Annotated[Path | None, typer.Argument(help="The file of a plan (chipwise plan ... --out FILE).")] = None,
    machines: Annotated[int | None, typer.Option(help="A number of machines, instead of a plan.", min=1)] = None,
    rent: Annotated[
        str | None, typer.Option(help="Rent of one machine, such as '2.5 USD/h'. Default: the plan's price.")
    ] = None,
    power: Annotated[
        str | None, typer.Option(help="Power draw of one machine, such as 150W. Default: the plan's boards.")
    ] = None,
    buy: options.Buy = None,
    electricity: options.Electricity = None,
    growth: Annotated[str, typer.Option(help="Growth of the load, such as '8 %/month'.")] = "0 %/month",
    months: Annotated[int, typer.Option(help="Number of months.", min=1)] = 24,
    hours_per_day: Annotated[float, typer.Option(help="Hours per day that the machines run.")] = 24.0,
    as_json: options.AsJson = False,
) -> None:
    """Bill a fleet month by month while its load grows, and say when buying is cheaper than renting.

    chipwise plan Qwen/Qwen3-8B --rate 8/s --device l40s --out plan.json

    chipwise bill plan.json --growth "8 %/month" --months 24 --buy "9000 USD" --electricity "0.30 USD/kWh"

    Devices in the field: chipwise bill --machines 4000 --power 150W --electricity "0.15 USD/kWh"
    """
    found = api.bill(
        plan, machines=machines, rent=rent, power=power, buy=buy, electricity=electricity, growth=growth, months=months,
        hours_per_day=hours_per_day,
    )  # fmt: skip
    json_of(found) if as_json else _print(found)


def _cells(month: answers.Month) -> tuple[str, ...]:
    """Returns a month's row without the month's number, so that equal months can share one row."""
    prices = (month.rent_usd, month.purchase_usd, month.electricity_usd)
    shown = ("unknown" if price is None else f"${price:,.0f}" for price in prices)
    return f"{units.number(month.load)} x", f"{month.devices:,}", *shown


def _print(found: answers.Bill) -> None:
    say(found.headline(), bold=True)
    table = Table(columns=numeric("month", "load", "machines", "rent", "purchases", "electricity"))
    for cells, months in groupby(found.months, key=_cells):
        numbers = [each.month for each in months]
        table.add(f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else str(numbers[0]), *cells)
    print_table(table)
    say_notes(found.notes)
    say("note: rent includes electricity; bought machines are paid in the month in which they are added")
