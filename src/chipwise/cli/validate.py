"""``chipwise validate``: predictions for measured rows, with or without the row's device in the fit."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Kind(StrEnum):
    """What was measured."""

    GEMM = "gemm"
    ATTENTION = "attention"
    SERVING = "serving"
    POWER = "power"


class LeaveOut(StrEnum):
    """What the fit behind a row's prediction had not seen."""

    NONE = "none"
    DEVICE = "device"
    FAMILY = "family"


def command(
    kind: Annotated[Kind, typer.Argument(help="What was measured.")],
    truth: Annotated[Path, typer.Option(help="Folder that holds KIND.csv, or the file itself.")],
    out: Annotated[Path, typer.Option(help="Where the predictions go: row_id, the prediction, its 90 % interval.")],
    leave_out: Annotated[LeaveOut, typer.Option(help="Predict each row by a fit without its device or family.")] = (
        LeaveOut.NONE
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print the errors as JSON.")] = False,
) -> None:
    """Predict measured kernels, served runs or power, and say how far off the predictions are.

    chipwise validate gemm --truth DIR --leave-out device --out predictions.csv
    """
    from chipwise import api
    from chipwise.cli.output import console, json_of

    scores = api.validate(kind.value, truth, out, leave_out=leave_out.value)
    if as_json:
        json_of(scores)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("subset", "rows", "answered", "MAPE", "median", "p90", "within 25 %", "inside 90 %"):
        table.add_column(name, justify="left" if name == "subset" else "right")
    for score in scores:
        inside = "" if score.inside is None else f"{100 * score.inside:.1f} %"
        errors = (f"{100 * value:.1f} %" for value in (score.mape, score.median, score.p90, score.within_25))
        table.add_row(score.subset, f"{score.rows:,}", f"{100 * score.answered:.1f} %", *errors, inside)
    console.print(table)
    console.print(f"wrote {out}")
