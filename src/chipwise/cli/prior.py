"""``chipwise prior``: shows, exports, imports and deletes stored training runs, whose results later searches use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chipwise.api import answers
from chipwise.cli import options, show
from chipwise.cli.output import print_table, say
from chipwise.core import units
from chipwise.core.layout import Column, Table, numeric

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def about() -> None:
    """Training runs of your finished searches, which later searches on the same data begin with.

    A search stores the design, tokens and loss of each training run, but no data or weights, in one file of the user's
    data folder (CHIPWISE_HOME if set). Losses are comparable only for the same task, data and recipe, so a search
    ignores all other training runs. With 'prior: shipped' in its run file, a search does not read this file; with
    'prior: none', it also does without chipwise's own estimates of how operators affect the loss.
    """


@app.command("show")
def shown(as_json: options.AsJson = False) -> None:
    """List the stored training runs by data and search."""
    store = answers.PastTrainings()
    found = store.entries()
    if as_json:
        show.json_of(found)
        return
    if not found:
        say(f"no training runs yet in {store.path}; finished searches store their training runs there")
        return
    table = Table(
        title=f"{len(found)} training run{'s' if len(found) > 1 else ''} in {store.path}",
        columns=[
            *(Column(head=head, drop=drop) for head, drop in (("task", 0), ("data", 5), ("run", 0), ("last", 4))),
            *numeric("count", ("longest", 3), "best"),
        ],
        caption="longest: tokens of the longest training run; best: lowest validation loss; every training run: --json",
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
    """Write the training runs to a file that a colleague can import."""
    show.counts({"exported": answers.PastTrainings().export(out), "file": str(out)}, as_json)


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A file from 'chipwise prior export'.")], as_json: options.AsJson = False
) -> None:
    """Add training runs of a colleague's searches; existing ones are not changed."""
    show.counts({"imported": answers.PastTrainings().import_(file), "file": str(file)}, as_json)


@app.command("reset")
def reset(as_json: options.AsJson = False) -> None:
    """Delete the stored training runs; the folders of the searches are kept."""
    store = answers.PastTrainings()
    store.reset()
    show.counts({"deleted": str(store.path)}, as_json)
