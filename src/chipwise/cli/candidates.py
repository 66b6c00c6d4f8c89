"""``chipwise candidates``: the cost of ranking different numbers of candidates."""

from __future__ import annotations

from typing import Annotated

import typer

from chipwise import api
from chipwise.api import answers
from chipwise.cli import completion, options
from chipwise.cli.output import json_of, print_table, say
from chipwise.core import units
from chipwise.core.digest import plain
from chipwise.core.layout import Table, numeric
from chipwise.errors import InputError


def command(
    model: options.Model,
    device: options.Device = "h100-sxm",
    memory: options.Memory = None,
    counts: Annotated[str, typer.Option(help="Numbers of candidates.")] = "1,8,32,128,512",
    runtime: options.Runtime = None,
    weights: options.Weights = None,
    shards: Annotated[int | None, typer.Option(help="Devices over which embedding tables are sharded.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Predict the cost of ranking N candidates, for several N: all in one request, and one per request.

    chipwise candidates runs/ranking/winner --device l4 --counts 1,8,32,128,512
    """
    try:
        numbers = [int(part) for part in counts.split(",")]
    except ValueError:
        raise InputError(f"--counts: must be comma-separated whole numbers, such as 1,8,32; not {counts!r}") from None
    device = completion.sized(device, memory)
    found = api.candidates(model, device=device, counts=numbers, runtime=runtime, weights=weights, shards=shards)
    if as_json:
        json_of([{**plain(row), "times_cheaper": row.times_cheaper} for row in found])
        return
    say(f"{model} on {device}: predicted, 90 % intervals where they are known", bold=True)
    table = Table(columns=numeric("candidates", "together", "over one", "one by one", "over one", "times cheaper"))
    first = found[0]
    for row in found:
        table.add(
            f"{row.candidates:,}",
            _between(row.together_s),
            f"{row.together_s.value / first.together_s.value:.1f}",
            _between(row.apart_s),
            f"{row.apart_s.value / first.apart_s.value:.1f}",
            f"{row.times_cheaper:.1f}",
        )
    print_table(table)


def _between(item: answers.Predicted) -> str:
    value = units.show(item.value, "time", digits=3)
    if item.low is None or item.high is None:
        return value
    low, high = (units.show(end, "time", digits=3) for end in (item.low, item.high))
    return f"{value} ({low} to {high})"
