"""``chipwise candidates``: what ranking several numbers of candidates costs."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    model: Annotated[str, typer.Argument(help="A winner's folder or a spec file of a ranking model.")],
    device: Annotated[
        str, typer.Option(help="Data sheet (see chipwise devices); here is this machine, as calibrated for ranking.")
    ] = "h100-sxm",
    counts: Annotated[str, typer.Option(help="Numbers of candidates, with commas between.")] = "1,8,32,128,512",
    runtime: Annotated[str | None, typer.Option(help="Runtime; default: the device's own.")] = None,
    weights: Annotated[str | None, typer.Option(help="Weight format.")] = None,
    shards: Annotated[
        int | None, typer.Option(help="Devices over which the embedding tables are sharded (all-to-all).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the costs as JSON.")] = False,
) -> None:
    """Predict what candidates cost a ranking model: together, after a history that is computed once, and one by one.

    Together they are one pass over the history and all candidates, of which none sees another. One by one they are as
    many requests, each with the history and one candidate, in one batch.
    """
    from chipwise import api
    from chipwise.cli.output import json_of, print_table, say
    from chipwise.core import units
    from chipwise.core.digest import plain
    from chipwise.core.layout import Column, Table
    from chipwise.errors import InputError
    from chipwise.predict.cost.model import Predicted

    def between(item: Predicted) -> str:
        value = units.show(item.value, "time", digits=3)
        if item.low is None or item.high is None:
            return value
        low, high = (units.show(end, "time", digits=3) for end in (item.low, item.high))
        return f"{value} ({low} to {high})"

    try:
        numbers = [int(part) for part in counts.split(",")]
    except ValueError:
        raise InputError(f"--counts: whole numbers with commas between, such as 1,8,32; not {counts!r}") from None
    found = api.candidates(model, device=device, counts=numbers, runtime=runtime, weights=weights, shards=shards)
    if as_json:
        json_of([{**plain(row), "times_cheaper": row.times_cheaper} for row in found])
        return
    say(f"{model} on {device}: predicted, 90 % intervals where they are known", bold=True)
    heads = ("candidates", "together", "over one", "one by one", "over one", "times cheaper")
    table = Table(columns=[Column(head=head, right=True) for head in heads])
    first = found[0]
    for row in found:
        table.add(
            f"{row.candidates:,}",
            between(row.together_s),
            f"{row.together_s.value / first.together_s.value:.1f}",
            between(row.apart_s),
            f"{row.apart_s.value / first.apart_s.value:.1f}",
            f"{row.times_cheaper:.1f}",
        )
    print_table(table)
