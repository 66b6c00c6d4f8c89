"""``chipwise search``: from a budget file to a trained, quantised, exported and measured transformer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def command(
    spec: Annotated[Path, typer.Argument(help="The search's YAML file, such as examples/clinic.yaml.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/<name> unless given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that the folder holds.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Put that run aside and begin anew.")] = False,
    workers: Annotated[int | None, typer.Option(help="Trainings side by side; the file's number unless given.")] = None,
    storage: Annotated[
        str | None,
        typer.Option(help="Keep trials in postgresql://…, sqlite:///… or another journal; in the folder unless given."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON and no progress.")] = False,
) -> None:
    """Search architectures and their quantisation under a budget, on real measurements; or cut the model of start_from.

    Leaves a folder with report.html, card.md, trials.csv, the winner as a Hugging Face folder and model.onnx, and the
    study, so that a stopped search goes on with --resume.
    """
    from chipwise import api
    from chipwise.cli import show

    if resume and restart:
        raise typer.BadParameter("choose one of --resume and --restart")
    try:
        if as_json:
            show.json_of(api.search(spec, out=out, resume=resume, restart=restart, workers=workers, storage=storage))
            return
        with show.live() as observer:
            record = api.search(
                spec,
                out=out,
                resume=resume,
                restart=restart,
                workers=workers,
                storage=storage,
                observer=observer,
            )
    except KeyboardInterrupt:
        print("stopped; what was finished is kept, go on with --resume", file=sys.stderr)
        raise typer.Exit(130) from None
    show.result(record, api.run_folder(spec, out))
