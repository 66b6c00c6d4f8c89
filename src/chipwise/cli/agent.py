"""``chipwise agent``: predicts one turn of an agent's loop and compares it with a time budget."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from chipwise import api
from chipwise.api import answers
from chipwise.cli import options
from chipwise.cli.output import json_of, print_table, say, say_notes
from chipwise.core import units
from chipwise.core.layout import Column, Table, numeric


def command(
    loop: Annotated[Path, typer.Argument(help="A YAML file: budget, device, parts (see `chipwise init agent`).")],
    as_json: options.AsJson = False,
) -> None:
    """Compare one turn of an agent's loop (perceive, think, act) with a time budget, and name the slowest part.

    Each part is a model with its tokens and images, or a time that you measured. If a turn takes too long, the
    alternatives in the file are tried in order of preference. Each part's row says how many new tokens or calls would
    fit if nothing else changed, and one line says which part to move to which chip.

    chipwise init agent && chipwise agent agent.yaml
    """
    found = api.agent_loop(loop)
    if as_json:
        json_of(found.to_dict() | {"rows": found.rows()})
    else:
        _print(found)


def _print(found: answers.LoopCost) -> None:
    say(f"{found.loop.name}: predicted, 90 % intervals", bold=True)
    say(found.headline())
    numbers = numeric("calls", "a turn", "share", "would fit")
    table = Table(columns=[Column(head="part"), Column(head="what", prose=True), *numbers])
    for cost in found.parts:
        table.add(
            cost.part.name,
            cost.part.describe(),
            _calls(cost),
            units.show(cost.turn_s.value, "time"),
            units.show(cost.turn_s.value / found.total.value, "share", digits=2),
            _fitting(found, cost),
        )
    print_table(table)
    if (advice := found.to_move()) is not None:
        say(advice)
    changed = "" if found.changed_s is None else units.show(found.changed_s, "time")
    if found.fitting:
        say(f"With these parts, a turn fits into the budget and takes {changed}:")
        for before, cost in zip(found.parts, found.fitting, strict=True):
            what = cost.part.describe() + (f", calls: {_calls(cost)}" if cost.part.calls > 1 else "")
            other = " (changed)" if replace(cost.part, instead={}) != replace(before.part, instead={}) else ""
            say(f"  {cost.part.name}: {what}, {units.show(cost.turn_s.value, 'time')}{other}")
    elif found.least:
        say(f"No combination of the alternatives fits into the budget; with the fastest one, a turn takes {changed}.")
    say_notes(found.notes)


def _calls(cost: answers.PartCost) -> str:
    """Returns text with the number of calls per turn, how many run at once, and which share of them is retried."""
    part = cost.part
    at_once = f", {part.parallel} at once" if part.parallel > 1 else ""
    again = f", {units.show(part.retry_share, 'share')} retried" if part.retry_share else ""
    return f"{part.calls}{at_once}{again}"


def _fitting(found: answers.LoopCost, cost: answers.PartCost) -> str:
    """Returns text that says how many new tokens or calls of a part fit into the budget if nothing else changes."""
    room = found.room_s(cost)
    new = cost.new_within(room)
    if new is not None and cost.part.new > 1:
        return f"{new:,} new tokens" if new else "not one token"
    calls = cost.calls_within(room)
    return f"{calls:,} call{'' if calls == 1 else 's'}" if calls > 0 else "not one call"
