"""The commands and what they share: errors as one line, exit codes, ``--debug``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from chipwise.cli import (
    calibrate,
    compare,
    devices,
    estimate,
    evaluate,
    explain,
    fit,
    measure,
    measurements,
    ops,
    report,
    search,
    sensitivity,
    shrink,
    space,
    strategies,
    train,
    validate,
)
from chipwise.core.errors import ChipwiseError

app = typer.Typer(
    name="chipwise",
    help="Design transformers that fit the chip: search, train, quantise, export and measure under a budget.",
    epilog="Start with: chipwise search examples/clinic.yaml",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("search")(search.command)
app.command("space")(space.command)
app.command("train")(train.command)
app.command("shrink")(shrink.command)
app.command("evaluate")(evaluate.command)
app.command("report")(report.command)
app.command("estimate")(estimate.command)
app.command("explain")(explain.command)
app.command("compare")(compare.command)
app.command("sensitivity")(sensitivity.command)
app.command("ops")(ops.command)
app.command("validate")(validate.command)
app.command("fit")(fit.command)
app.command("calibrate")(calibrate.command)
app.command("measure")(measure.command)
app.command("strategies")(strategies.command)
app.add_typer(devices.app, name="devices")
app.add_typer(measurements.app, name="measurements")


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the full traceback of an error.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Options of every command."""
    if version:
        from importlib.metadata import version as installed

        print(f"chipwise {installed('chipwise')}")
        raise typer.Exit
    _Debug.on = debug


class _Debug:
    on = False


def main() -> None:
    """Entry point of the ``chipwise`` command.

    Exit codes: 0 done, 1 failed, 2 bad input, 130 stopped by Ctrl-C.
    """
    try:
        app()
    except ChipwiseError as error:
        if _Debug.on:
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
