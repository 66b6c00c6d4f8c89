"""``chipwise quantize``: the fastest form of a model on this machine within a loss."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chipwise import api
from chipwise.api import answers
from chipwise.cli import stages
from chipwise.cli.output import json_of, print_table, put, say, stoppable
from chipwise.core import units
from chipwise.core.layout import Column, Table


def command(
    model: Annotated[str, typer.Argument(help="A .onnx file.")],
    data: Annotated[
        Path, typer.Option(help="A .npz file with samples of each input along a first axis, or a folder of such files.")
    ],
    loss: Annotated[
        str, typer.Option(help="Largest loss: relative error of the outputs, or share of the metric, such as '<= 1 %'.")
    ] = "<= 1 %",
    metric: Annotated[
        str | None,
        typer.Option(help="A function score(outputs, data) of a Python file, as FILE.py:score; more is better."),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(help="Fix an input's open axes in the written file, as x=1,3,224,224 (repeat the option)."),
    ] = None,
    value: Annotated[
        list[str] | None,
        typer.Option(help="Fix an input in the written file, as sr=16000; it is ignored there (repeat the option)."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write. Default: NAME.quantised.onnx here.")] = None,
    threads: Annotated[int, typer.Option(help="Threads of the runtime.", min=1)] = 1,
    minutes: Annotated[
        float, typer.Option(help="Most minutes for changes of single operators, after the exact choice.", min=0)
    ] = 10.0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a stopped run.")] = False,
    seed: Annotated[int, typer.Option(help="Random seed of how data are split.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, without progress.")] = False,
) -> None:
    """Make an ONNX file faster: try the runtime's number formats, and choose one for each operator by time and loss.

    One half of the data chooses, the other half scores. If nothing beats the original, nothing is written.

    chipwise quantize model.onnx --data inputs.npz --loss "<= 1 %"
    """
    with stoppable():
        found = api.quantize(
            model,
            data=data,
            loss=loss,
            metric=metric,
            shapes=answers.parse_shapes(shape or ()),
            values=answers.parse_values(value or ()),
            out=out,
            threads=threads,
            minutes=minutes,
            resume=resume,
            seed=seed,
            on_progress=stages.silent if as_json else stages.Progress(),
        )
    if as_json:
        json_of(found)
    else:
        _print(found)


def _print(found: answers.QuantisedFile) -> None:
    heads = ("time", "loss", "at most (95 %)", "size")
    table = Table(
        title=f"{found.source} · measured in turns with the original, {found.choosing} samples that choose",
        columns=[Column(head="formats", prose=True), *(Column(head=head, right=True) for head in heads)],
    )
    for item in found.tried:
        shown = ("–" if x is None else units.show(x, "share") for x in (item.ratio, item.loss, item.upper))
        size = "–" if item.size_bytes is None else units.show(item.size_bytes, "bytes")
        table.add(item.recipe + (f": {item.error}" if item.error else ""), *shown, size)
    print_table(table)
    for note in found.notes:
        say(f"note: {note}")
    kind = "CPU time" if found.threads == 1 else "time"
    low, high = (units.show(x, "share") for x in (found.ratio_low, found.ratio_high))
    say(
        f"measured: {units.show(found.ratio, 'share')} of the original's {kind} ({low} to {high} in {found.rounds} "
        f"rounds); the original, {units.show(found.original_s, 'time')}, repeats within "
        f"{units.show(found.repeatability, 'share')}"
    )
    limit = f"limit {units.show(found.limit, 'share')}"
    if found.file is None:
        say(f"No form within the loss ({found.unit}, {limit}) beats the original; nothing was written.", bold=True)
        return
    scored = f"on the {found.scored} samples that chose nothing"
    say(f"loss ({found.unit}): {units.show(found.loss or 0.0, 'share')} {scored}; {limit}")
    say(f"formats: {found.formats}")
    put(
        f"file: {found.file} ({units.show(found.size_bytes, 'bytes')}, was {units.show(found.original_bytes, 'bytes')})"
    )
