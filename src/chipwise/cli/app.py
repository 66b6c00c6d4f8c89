"""The commands, and what they share: errors on one line, exit codes, ``--debug``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import chipwise
from chipwise.cli import (
    calibrate,
    compare,
    devices,
    estimate,
    evaluate,
    explain,
    fit,
    init,
    measure,
    measurements,
    models,
    ops,
    report,
    runtimes,
    search,
    sensitivity,
    shrink,
    space,
    strategies,
    train,
    validate,
)
from chipwise.core.errors import ChipwiseError
from chipwise.core.extras import missing_extra

app = typer.Typer(
    name="chipwise",
    help="Estimate, explain and design transformers for a chip: predict costs, search, train, quantise and measure.",
    epilog="Start with: chipwise estimate gpt2 --device l4, or chipwise init and then chipwise search clinic.yaml",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("estimate")(estimate.command)
app.command("explain")(explain.command)
app.command("compare")(compare.command)
app.add_typer(devices.app, name="devices")
app.command("models")(models.command)
app.command("runtimes")(runtimes.command)
app.command("init")(init.command)
app.command("search")(search.command)
app.command("report")(report.command)
app.command("space")(space.command)
app.command("strategies")(strategies.command)
app.command("train")(train.command)
app.command("evaluate")(evaluate.command)
app.command("shrink")(shrink.command)
app.command("sensitivity")(sensitivity.command)
app.command("measure")(measure.command)
app.add_typer(measurements.app, name="measurements")
app.command("calibrate")(calibrate.command)
app.command("ops")(ops.command)
app.command("validate")(validate.command)
app.command("fit")(fit.command)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"chipwise {chipwise.__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the full traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options of every command."""
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
        _fail(error)
    except ModuleNotFoundError as error:
        missing = missing_extra(error)
        if missing is None:
            raise
        _fail(missing)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)


def _fail(error: ChipwiseError) -> None:
    if _Debug.on:
        raise error
    print(f"error: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
