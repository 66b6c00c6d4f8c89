"""``chipwise subnetwork``: cuts one model out of a supernet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chipwise import api
from chipwise.cli import show
from chipwise.cli.output import say


def command(
    folder: Annotated[
        str, typer.Argument(help="The folder of a run with quality: supernet, or a folder of shared weights.")
    ],
    model: Annotated[
        str, typer.Argument(help="A trial number of the run, or a spec file, config or known name that fits.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    tokenizer: Annotated[
        Path | None, typer.Option(help="A tokenizer.json. Default: the run's tokenizer for the model's vocabulary.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the folder as JSON.")] = False,
) -> None:
    """Cut one model out of a supernet's shared weights, without training it.

    The result is a Hugging Face folder: continue training it with chipwise train FOLDER, evaluate it with chipwise
    evaluate FOLDER TASK, measure it with chipwise measure FOLDER.
    """
    found = api.export_subnetwork(folder, int(model) if model.isdigit() else model, out=out, tokenizer=tokenizer)
    if as_json:
        show.json_of({"folder": str(found)})
        return
    say(f"written: {found}")
