"""Prints the cost of ranking several numbers of candidates for ``chipwise estimate --candidates``."""

from __future__ import annotations

import typer

from chipwise import api
from chipwise.api import answers
from chipwise.cli.output import json_of, print_table, refuse, say
from chipwise.core import units
from chipwise.core.digest import plain
from chipwise.core.layout import Column, Table
from chipwise.errors import InputError

READ = ("model", "device", "memory", "like", "runtime", "weights", "candidates", "shards", "as_json")


def answered(context: typer.Context, model: str, device: str, *, counts: str | None, shards: int | None) -> bool:
    """Prints the costs if numbers of candidates are given; returns whether they are.

    Raises:
        typer.BadParameter: An option was given that cannot be combined with ``--candidates``.
    """
    told = context.params
    if counts is None:
        refuse(context, "shards", why="is for --candidates")
        return False
    refuse(context, *(name for name in told if name not in READ), why="cannot be combined with --candidates")
    try:
        numbers = [int(part) for part in counts.split(",")]
    except ValueError:
        raise InputError(
            f"--candidates: must be comma-separated whole numbers, such as 1,8,32; not {counts!r}"
        ) from None
    found = api.candidates(
        model, device=device, counts=numbers, runtime=told["runtime"], weights=told["weights"], shards=shards
    )
    if told["as_json"]:
        json_of([{**plain(row), "times_cheaper": row.times_cheaper} for row in found])
        return True
    say(f"{model} on {device}: predicted, 90 % intervals where they are known", bold=True)
    heads = ("candidates", "together", "over one", "one by one", "over one", "times cheaper")
    table = Table(columns=[Column(head=head, right=True) for head in heads])
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
    return True


def _between(item: answers.Predicted) -> str:
    value = units.show(item.value, "time", digits=3)
    if item.low is None or item.high is None:
        return value
    low, high = (units.show(end, "time", digits=3) for end in (item.low, item.high))
    return f"{value} ({low} to {high})"
