"""``chipwise teach``: fits the profile of a machine to a table of measured models."""

from __future__ import annotations

from typing import Annotated

import typer

from chipwise import api
from chipwise.api import answers
from chipwise.cli import completion, options, show
from chipwise.cli.output import json_of, say, say_notes
from chipwise.core import units
from chipwise.errors import counted

MOST_LINES = 12  # maximum number of problems or contradictions to show


def command(
    device: Annotated[str, typer.Argument(help="Name for the machine, such as shop-box.")],
    rows: Annotated[
        str | None,
        typer.Option(
            "--from", help="CSV file (or .gz), kit-results.json, exported measurements, or `measurements` (all stored)."
        ),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(help="The data sheet most similar to the machine.", autocompletion=completion.devices),
    ] = None,
    mapped: Annotated[
        list[str] | None, typer.Option("--map", help="COLUMN=FIELD, such as lat=total_ms; COLUMN=- leaves it out.")
    ] = None,
    where: Annotated[list[str] | None, typer.Option(help="COLUMN=VALUE: use only rows with this value.")] = None,
    runtime: Annotated[
        str | None, typer.Option(help="Runtime for rows that do not name one.", autocompletion=completion.runtimes)
    ] = None,
    add: Annotated[
        bool, typer.Option("--add", help="Also use the rows from which the machine was last taught.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the table and save nothing.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Teach chipwise a machine from a table of measured models.

    A table: chipwise teach shop-box --from rows.csv --base raspberry-pi-4

    Then: chipwise estimate gpt2 --device shop-box

    ONNX files on a phone's NPU: chipwise teach my-phone --from files.csv --base snapdragon-7s-gen-4

    ONNX files of a kit, on the CPU: chipwise teach my-board --from kit-results.json --base raspberry-pi-5

    With renamed columns: chipwise teach shop-box --from rows.csv --map lat=total_ms

    A row needs a model (a known name, a config or spec file, or sizes such as d_model and layers) and either a time in
    a column whose name has its unit (total_s, ttft_ms, tpot_ms) or tokens/s (decode_tokens_per_s). Optional columns:
    runtime, weights, prompt_tokens, new_tokens, batch. At most 10,000 rows are used.

    ONNX files: at least five rows, each with the columns file and seconds; precision, runtime, shape, threads and
    backend (cpu, gpu or npu) are optional.
    """
    named = answers.map_of
    with show.waiting("learning from the rows", quiet=as_json):
        found = api.teach(
            device, rows, base=base, columns=named(mapped or (), "--map"), where=named(where or (), "--where"),
            runtime=runtime, add=add, keep=not dry_run,
        )  # fmt: skip
    if as_json:
        json_of(found.summary())
    else:
        _print(found)


def _print(found: answers.Taught) -> None:
    teaching, check = found.teaching, found.teaching.check
    if found.columns:
        say(f"columns: {'; '.join(found.columns)}")
    say_notes((*found.warnings, *found.notes))
    if found.problems:
        say(f"{counted(len(found.problems), 'row')} could not be used:")
        for line, why in list(found.problems.items())[:MOST_LINES]:
            say(f"line {line}: {why}", indent=2)
        if len(found.problems) > MOST_LINES:
            say(f"and {len(found.problems) - MOST_LINES} more: --json", indent=2)
    if found.flags:
        say(f"{counted(len(found.flags), 'time')} contradict{'s' if len(found.flags) == 1 else ''} the other rows:")
        for flag in found.flags[:MOST_LINES]:
            expected = units.span(flag.expected_s, flag.low_s, flag.high_s, "time")
            measured = units.show(flag.measured_s, "time")
            what = f"line {flag.line}, {flag.model}, {flag.quantity}: {measured}, expected {expected}: {flag.reason}"
            say(what, indent=2)
    say(f"{teaching.label}, based on the data sheet of {teaching.base}: {teaching.provenance}", bold=True)
    if check is not None:
        share = "" if check.inside is None else f"; {units.show(check.inside, 'share')} inside the 90 % interval"
        say(
            f"mean error on models left out of the fit: {units.show(check.mean, 'share')} "
            f"over {counted(check.rows, 'time')} (the data sheet alone: "
            f"{'unknown' if check.sheet_mean is None else units.show(check.sheet_mean, 'share')}){share}"
        )
    elif teaching.rows:
        say("too few rows to leave any out of the fit: the error is not known")
    if found.path is not None:
        say(f"wrote {found.path}")
        say(f"use it: chipwise estimate {'model.onnx' if teaching.files else 'gpt2'} --device {found.name}")
    else:
        say("nothing was saved")
