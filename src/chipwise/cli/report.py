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
    """Write report.html, card.md and trials.csv of a run again, from the data in its folder.

    If the run stopped early, says what to do. Exit code 4: the winner is not known to meet every limit.
    """
    record = api.report(run)
    if as_json:
        show.json_of(record)
    else:
        show.result(record, run)
    raise typer.Exit(show.ending(record))
