"""``chipwise validate``: scores predictions against tables of measurements."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Kind(StrEnum):
    """Kind of measurement."""

    GEMM = "gemm"
    ATTENTION = "attention"
    SERVING = "serving"
    POWER = "power"
    EDGE = "edge"
    VENDORS = "vendors"
    VISION = "vision"
    PHONES = "phones"
    ENERGY = "energy"
    LAYERS = "layers"
    TAILS = "tails"
    LOAD = "load"


class LeaveOut(StrEnum):
    """The group that the fit leaves out when it predicts a row: the row's device, family and so on."""

    NONE = "none"
    MODEL = "model"
    DEVICE = "device"
    FAMILY = "family"
    VENDOR = "vendor"


def command(
    kind: Annotated[Kind, typer.Argument(help="Kind of measurement.")],
    truth: Annotated[Path, typer.Option(help="Folder that holds KIND.csv, or the file itself.")],
    out: Annotated[Path, typer.Option(help="File for the predictions: row_id, the prediction, its 90 % interval.")],
    leave_out: Annotated[
        LeaveOut,
        typer.Option(
            help="Leave the row's group out of the fit that predicts the row; model and vendor: only for tables of "
            "whole runs."
        ),
    ] = (LeaveOut.NONE),
    as_json: Annotated[bool, typer.Option("--json", help="Print the errors as JSON.")] = False,
) -> None:
    """Predict measured kernels, whole runs, power or energy, and print the errors.

    chipwise validate gemm --truth DIR --leave-out device --out predictions.csv

    Tables of whole runs: edge (one user), vendors (batches of equal requests), vision (image models), phones (parts of
    models), energy (served models, images, videos), layers (kernels timed by another laboratory),
    load (runs of vLLM under load).
    """
    from chipwise.cli.output import json_of, print_table, put, say
    from chipwise.core import units
    from chipwise.core.layout import Column, Table
    from chipwise_fitting.commands import validate

    scores = validate(kind.value, truth, out, leave_out=leave_out.value)
    if as_json:
        json_of(scores)
        return
    heads = ["rows", "answered", "MAPE", "median", "p90", "within 25 %", "inside 90 %"]
    rivals = any(score.rival_median is not None for score in scores)
    heads += ["rival, median"] if rivals else []
    table = Table(columns=[Column(head="subset"), *(Column(head=head, right=True) for head in heads)])
    for score in scores:
        shares = [score.answered, score.mape, score.median, score.p90, score.within_25, score.inside]
        shares += [score.rival_median] if rivals else []
        table.add(
            score.subset,
            f"{score.rows:,}",
            *("" if share is None else units.show(share, "share") for share in shares),
        )
    print_table(table)
    if scores and scores[0].problem:
        missing = units.show(1 - scores[0].answered, "share")
        say(f"note: {missing} of the rows have no prediction; the first: {scores[0].problem}")
    if scores and scores[0].note:
        say(f"note: {scores[0].note}")
    put(f"wrote {out}")
