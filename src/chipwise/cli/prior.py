"""``chipwise prior``: shows, exports, imports and deletes the trainings that searches begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chipwise.api import answers
from chipwise.cli import options, show
from chipwise.cli.output import print_table, say
from chipwise.core import units
from chipwise.core.layout import Column, Table

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def about() -> None:
    """Trainings of your finished searches, which later searches of the same data begin with.

    A search stores designs, tokens and losses of its trainings, neither data nor weights, in one file of the user's
    data folder (CHIPWISE_HOME if set). Losses compare only for the same task, data and recipe, so a search reads no
    others. In a run file, 'prior: shipped' ignores the file, and 'prior: none' also what chipwise knows of operators.
    """


@app.command("show")
def shown(as_json: options.AsJson = False) -> None:
    """List the stored trainings by data and run."""
    store = answers.PastTrainings()
    found = store.entries()
    if as_json:
        show.json_of(found)
        return
    if not found:
        say(f"no trainings yet in {store.path}; searches that finish store theirs")
        return
    table = Table(
        title=f"{len(found)} training{'s' if len(found) > 1 else ''} in {store.path}",
        columns=[
            *(Column(head=head, drop=drop) for head, drop in (("task", 0), ("data", 5), ("run", 0), ("last", 4))),
            *(Column(head=head, right=True, drop=drop) for head, drop in (("count", 0), ("longest", 3), ("best", 0))),
        ],
        caption="longest: tokens of the longest training; best: lowest validation loss; every training: --json",
    )
    runs: dict[tuple[str, str, str], list[answers.PastTraining]] = {}
    for one in found:
        runs.setdefault((one.task, one.data, one.run), []).append(one)
    for (task, data, run), same in runs.items():
        longest = units.show(max(one.tokens for one in same), "count")
        last = max(one.added for one in same)[:10]
        table.add(task, data[:8], run, last, str(len(same)), longest, f"{min(one.loss for one in same):.4g}")
    print_table(table)


@app.command("export")
def export(
    out: Annotated[Path, typer.Argument(help="The file to write, JSON lines.")], as_json: options.AsJson = False
) -> None:
    """Write the trainings to a file that a colleague can import."""
    show.counts({"exported": answers.PastTrainings().export(out), "file": str(out)}, as_json)


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A file from 'chipwise prior export'.")], as_json: options.AsJson = False
) -> None:
    """Add trainings of a colleague's searches; existing ones are not changed."""
    show.counts({"imported": answers.PastTrainings().import_(file), "file": str(file)}, as_json)


@app.command("reset")
def reset(as_json: options.AsJson = False) -> None:
    """Delete the stored trainings; nothing of their runs is deleted."""
    store = answers.PastTrainings()
    store.reset()
    show.counts({"deleted": str(store.path)}, as_json)
