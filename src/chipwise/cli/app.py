"""Collects the commands, prints errors in one line, sets exit codes, and implements ``--debug``."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Annotated, Protocol

import typer
from typer.core import TyperGroup

import chipwise
from chipwise.cli import (
    agent,
    bill,
    calibrate,
    candidates,
    compare,
    devices,
    estimate,
    evaluate,
    explain,
    export,
    fitting,
    init,
    kit,
    measure,
    measurements,
    models,
    plan,
    prior,
    quantize,
    report,
    runtimes,
    search,
    sensitivity,
    serve,
    shrink,
    simulate,
    space,
    strategies,
    teach,
    train,
    training_step,
    whole_runs,
)
from chipwise.cli.encoding import PLAINER
from chipwise.cli.output import is_interrupt
from chipwise.cli.usage import UsageError, plain_error
from chipwise.core.extras import optional_imports
from chipwise.core.files import refused_files
from chipwise.errors import ChipwiseError


class Formatter(Protocol):
    """The methods of Click's help formatter that :class:`Grouped` uses."""

    def section(self, name: str) -> AbstractContextManager[None]:
        """Writes a heading and indents what follows."""
        ...

    def write_dl(self, rows: Sequence[tuple[str, str]]) -> None:
        """Writes a list of terms, each with its meaning."""
        ...


class Grouped(TyperGroup):
    """Lists commands under the heading of their group, in the order in which they are added."""

    def format_commands(self, ctx: object, formatter: Formatter) -> None:
        """Writes one section per group."""
        width = max(map(len, self.commands))
        for group in GROUPS:
            rows = [
                (name.ljust(width), command.short_help or "")
                for name, command in self.commands.items()
                if getattr(command, "rich_help_panel", None) == group
            ]
            with formatter.section(group):
                formatter.write_dl(rows)


GROUPS = ("Predict", "Design", "Measure", "Serve", "Share", "Extend")
app = typer.Typer(
    name="chipwise",
    cls=Grouped,
    help="Estimate, explain and design transformers for a chip: predict costs, search, train, quantise and measure.",
    epilog="Start with: chipwise estimate gpt2 --device l4",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for group, name, command, summary in (
    ("Predict", "estimate", estimate.command, "Predict a model's latency, memory, energy and price."),
    ("Predict", "training-step", training_step.command, "Predict time and memory of one training step."),
    ("Predict", "pictures", whole_runs.pictures, "Predict the time of images or videos (diffusion)."),
    ("Predict", "parts", whole_runs.parts, "Predict each part of a model on a phone's chip."),
    ("Predict", "candidates", candidates.command, "Predict the cost of ranking 1, 8, 32, … candidates."),
    ("Predict", "compare", compare.command, "Compare models on several devices."),
    ("Predict", "explain", explain.command, "Explain where the time goes, and what would help."),
    ("Predict", "ops", fitting.command("ops"), "Predict the time of single operators."),
    ("Predict", "models", models.command, "List the bundled models."),
    ("Predict", "runtimes", runtimes.command, "List runtimes and weight formats."),
    ("Design", "init", init.command, "Write a commented run file for search."),
    ("Design", "search", search.command, "Design a model for this machine, under limits."),
    ("Design", "report", report.command, "Write a run's report again."),
    ("Design", "space", space.command, "Show the size and contents of a search space."),
    ("Design", "strategies", strategies.command, "List the search strategies."),
    ("Design", "train", train.command, "Train a model, or continue training one."),
    ("Design", "evaluate", evaluate.command, "Evaluate a model on a task."),
    ("Design", "shrink", shrink.command, "Cut a pretrained model to limits."),
    ("Design", "quantize", quantize.command, "Quantise a model within limits on loss or time."),
    ("Design", "sensitivity", sensitivity.command, "Measure which layers suffer from quantisation."),
    ("Measure", "measure", measure.command, "Measure a model on this machine."),
    ("Measure", "calibrate", calibrate.command, "Measure this machine's speed, for predictions."),
    ("Measure", "validate", fitting.command("validate"), "Score predictions against measurements."),
    ("Serve", "serve", serve.command, "Talk to a model: OpenAI's API and a chat page."),
    ("Serve", "plan", plan.command, "Find the cheapest fleet for a load, within limits."),
    ("Serve", "simulate", simulate.command, "Simulate one deployment under load."),
    ("Serve", "agent", agent.command, "Compare an agent's turn with a time budget."),
    ("Serve", "bill", bill.command, "Compare renting with buying, month by month."),
    ("Share", "export", export.command, "Write a model for llama.cpp, ONNX Runtime and others."),
    ("Share", "kit", kit.command, "Pack models to measure on another device."),
    ("Extend", "teach", teach.command, "Learn a machine's speed from measured models."),
    ("Extend", "fit", fitting.command("fit"), "Refine the cost models with measurements."),
):
    settings = fitting.ANYTHING if command is fitting.missing else {}
    app.command(name, short_help=summary, rich_help_panel=group, context_settings=settings)(command)
app.add_typer(
    devices.app, name="devices", short_help="List devices, or show one with its sources.", rich_help_panel="Predict"
)
app.add_typer(
    prior.app, name="prior", short_help="Show or share training runs of earlier searches.", rich_help_panel="Design"
)
app.add_typer(
    measurements.app, name="measurements", short_help="List, export or import measurements.", rich_help_panel="Share"
)


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
    """Options that are given before the name of any command."""
    _Debug.on = debug


class _Debug:
    on = False


def run() -> None:
    """Runs the command line, prints any error in one line, and exits."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=PLAINER)
    try:
        with optional_imports(), refused_files():
            code = app(prog_name="chipwise", standalone_mode=False)
            sys.stdout.flush()  # reports a failed write here instead of at interpreter exit
            sys.exit(code)
    except ChipwiseError as error:
        if is_interrupt(error):
            sys.exit(130)
        _fail(error)
    except UsageError as error:
        if "\n" in str(error):  # the help text, if no command was given
            print(error, file=sys.stderr)
            sys.exit(2)
        _fail(plain_error(error))
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except Exception as error:
        if is_interrupt(error):
            sys.exit(130)
        raise


def _fail(error: ChipwiseError) -> None:
    if _Debug.on:
        raise error
    try:
        sys.stdout.flush()
    except OSError:  # the buffered text cannot be written, so exit without another attempt
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    print(f"error: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
