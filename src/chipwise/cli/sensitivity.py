"""``chipwise sensitivity``: how much the loss rises if one layer is quantised, for `chipwise explain --sensitivity`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chipwise import api
from chipwise.cli.output import console, json_of, notices, progress_bar
from chipwise.core.files import check_output, write_json


def command(
    model: Annotated[str, typer.Argument(help="A folder with weights (and tokenizer), such as a winner's.")],
    text: Annotated[
        Path | None, typer.Option(help="A text file that the model was not trained on, one entry per line.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="For tasks other than text: a run file that names the data. Default: a winner's own data."),
    ] = None,
    weights: Annotated[str, typer.Option(help="The narrow format: int8 or int4.")] = "int8",
    out: Annotated[Path | None, typer.Option(help="Write the losses to this file, as a JSON list.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the losses as JSON.")] = False,
) -> None:
    """Measure how much quantising each layer alone raises the loss (bits per byte, or another task's loss).

    Text: chipwise sensitivity runs/clinic/winner --text unseen.txt

    Images, speech, ranking: chipwise sensitivity runs/vision/winner --data vision.yaml

    Use the file with: chipwise explain MODEL --device D --sensitivity FILE
    """
    if out is not None:
        check_output(out)

    with progress_bar("rounding layers", quiet=as_json) as advance:
        losses = api.sensitivity(model, text, data=data, weights=weights, on_progress=advance)
    if out is not None:
        write_json(out, list(losses))
        notices.print(f"wrote {out}")
    if as_json:
        json_of(list(losses))
        return
    for layer, loss in enumerate(losses):
        unit = "bits per byte" if text is not None else "of the task's loss"
        console.print(f"layer {layer:>3}: {loss:+.5f} {unit} in {weights}")
