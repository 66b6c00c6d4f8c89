"""Console output of commands, and a progress bar. Loads neither torch nor a run."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from chipwise.core.digest import plain
from chipwise.core.layout import Table, paragraph
from chipwise.errors import printable


class _PlainConsole(Console):
    """Prints text without escape codes, which file names or data from other machines may contain."""

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(printable(item) if isinstance(item, str) else item for item in objects), **options)


console = _PlainConsole()
notices = _PlainConsole(stderr=True)


def json_of(value: object) -> None:
    """Prints ``value`` as JSON on standard output."""
    print(json.dumps(plain(value), indent=1, allow_nan=False))


def is_default(context: typer.Context, name: str) -> bool:
    """Whether an option was left at its default."""
    source = context.get_parameter_source(name)
    return source is None or source.name != "COMMANDLINE"


def refuse(context: typer.Context, *names: str, why: str) -> None:
    """Raises an error for options that were given but would have no effect.

    Raises:
        typer.BadParameter: One of ``names`` is on the command line.
    """
    for name in names:
        if not is_default(context, name):
            raise typer.BadParameter(f"--{name.replace('_', '-')} {why}")


@contextlib.contextmanager
def stoppable(how: str = "the state is saved, continue with --resume") -> Iterator[None]:
    """Ends a command with exit code 130 after Ctrl-C, and prints ``how`` it goes on."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"stopped; {how}", file=sys.stderr)
        raise typer.Exit(130) from None


def width() -> int:
    """Characters per line: COLUMNS if set, else the terminal's width; 120 if the output is not a terminal."""
    if console.is_terminal or os.environ.get("COLUMNS", "").isdecimal():
        return max(40, console.width)
    return 120


def say(text: str = "", *, bold: bool = False, indent: int = 0, hang: int = 2) -> None:
    """Prints a paragraph that fits the width; bold on a terminal, plain text elsewhere."""
    for line in paragraph(text, width(), indent=indent, hang=hang) or [""]:
        put(line, bold=bold)


def put(line: str, *, bold: bool = False) -> None:
    """Prints one line without wrapping."""
    console.print(Text(printable(line), style="bold" if bold else ""), soft_wrap=True, highlight=False)


def print_table(table: Table) -> None:
    """Prints a table that fits the width."""
    for line, heading in table.lines(width()):
        put(line, bold=heading)


@contextlib.contextmanager
def progress_bar(label: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error; silent if standard error is not a terminal."""
    if quiet or not notices.is_terminal:
        yield lambda done, total: None
        return
    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=notices, transient=True) as bar:
        task = bar.add_task(label, total=None)

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield advance
