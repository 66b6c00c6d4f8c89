"""The commands, and what they share: errors on one line, exit codes, ``--debug``."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

import chipwise
from chipwise.cli import (
    agent,
    calibrate,
    candidates,
    compare,
    devices,
    estimate,
    evaluate,
    explain,
    export,
    fit,
    init,
    kit,
    measure,
    measurements,
    models,
    ops,
    plan,
    report,
    runtimes,
    search,
    sensitivity,
    shrink,
    simulate,
    space,
    strategies,
    subnetwork,
    teach,
    train,
    validate,
)
from chipwise.cli.encoding import PLAINER
from chipwise.cli.usage import UsageError, plain_error
from chipwise.core.extras import missing_extra
from chipwise.core.files import refused_files
from chipwise.errors import ChipwiseError

app = typer.Typer(
    name="chipwise",
    help="Estimate, explain and design transformers for a chip: predict costs, search, train, quantise and measure.",
    epilog="Start with: chipwise estimate gpt2 --device l4",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for name, command, summary in (
    ("estimate", estimate.command, "Predict latency, memory, energy and price on a device."),
    ("explain", explain.command, "Explain where the time goes, and what would help."),
    ("compare", compare.command, "Compare models on several devices."),
    ("simulate", simulate.command, "Simulate one arrangement under load."),
    ("plan", plan.command, "Find the cheapest fleet for a load and its limits."),
    ("agent", agent.command, "Price an agent's loop against one budget of time."),
    ("models", models.command, "List the bundled models."),
    ("runtimes", runtimes.command, "List runtimes and weight formats."),
    ("init", init.command, "Write a commented run file for search."),
    ("search", search.command, "Design a model for this machine, under limits."),
    ("report", report.command, "Write a run's report again."),
    ("space", space.command, "Show the size and contents of a search space."),
    ("strategies", strategies.command, "List the search strategies."),
    ("train", train.command, "Train a model, or continue training one."),
    ("evaluate", evaluate.command, "Evaluate a model on a task."),
    ("subnetwork", subnetwork.command, "Cut one model out of a supernet's shared weights."),
    ("shrink", shrink.command, "Cut a pretrained model to limits."),
    ("sensitivity", sensitivity.command, "Measure which layers suffer from quantisation."),
    ("export", export.command, "Write a model as GGUF, ONNX or a Hugging Face folder."),
    ("measure", measure.command, "Measure a model on this machine."),
    ("kit", kit.command, "Pack models to measure on a device that is not here."),
    ("calibrate", calibrate.command, "Measure what this machine can do."),
    ("teach", teach.command, "Learn a machine from a table of measured models."),
    ("candidates", candidates.command, "Predict the cost of candidates of a ranking model."),
    ("ops", ops.command, "Predict the time of single operators."),
    ("validate", validate.command, "Score predictions against measured rows."),
    ("fit", fit.command, "Refine the cost models with measurements."),
):
    app.command(name, short_help=summary)(command)
app.add_typer(devices.app, name="devices", short_help="List devices, or show one with its sources.")
app.add_typer(measurements.app, name="measurements", short_help="List, export or import measurements.")


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


def run() -> None:
    """Runs the command line, with every error on one line, and exits."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=PLAINER)
    try:
        with refused_files():
            code = app(prog_name="chipwise", standalone_mode=False)
            sys.stdout.flush()  # what cannot be written is an error here, and not after the last line of the program
            sys.exit(code)
    except ChipwiseError as error:
        _fail(error)
    except UsageError as error:
        if "\n" in str(error):  # the help, where no command was given
            print(error, file=sys.stderr)
            sys.exit(2)
        _fail(plain_error(error))
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
    try:
        sys.stdout.flush()
    except OSError:  # what is still buffered can be written nowhere: the exit must not try again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    print(f"error: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
