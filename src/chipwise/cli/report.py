"""``chipwise report``: write a run's report again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chipwise import api
from chipwise.cli import show


def command(
    run: Annotated[Path, typer.Argument(help="A run's folder, such as runs/clinic.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the run's record as JSON.")] = False,
) -> None:
    """Write report.html, card.md and trials.csv of a run again, from what its folder holds.

    Says what to do where a run stopped early. Exit code 4: its winner does not keep every limit, as far as is known.
    """
    record = api.report(run)
    if as_json:
        show.json_of(record)
    else:
        show.result(record, run)
    raise typer.Exit(show.ending(record))
