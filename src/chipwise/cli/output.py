"""Console output of commands, and a progress bar. Importing this module does not import torch."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
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
def stoppable(
    how: str = "the state is saved; continue with --resume", code: Callable[[], int] = lambda: 130
) -> Iterator[None]:
    """Ends a command with the exit code ``code()`` after Ctrl-C, and prints ``how``, which says how to continue."""
    try:
        yield
    except BaseException as error:
        if not is_interrupt(error):
            raise
        print(f"stopped; {how}", file=sys.stderr)
        raise typer.Exit(code()) from None


def is_interrupt(error: BaseException | None) -> bool:
    """Whether ``error`` is a KeyboardInterrupt or has one as its cause.

    A signal that arrives while a C extension is imported, for example, ends in a SystemError or an ImportError.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__
    return error is not None


def width() -> int:
    """Characters per line: COLUMNS if set, else the terminal's width; 120 if the output is not a terminal."""
    if console.is_terminal or os.environ.get("COLUMNS", "").isdecimal():
        return max(40, console.width)
    return 120


def say(text: str = "", *, bold: bool = False, indent: int = 0, hang: int = 2) -> None:
    """Prints a paragraph, wrapped to the width. Bold text is bold only in a terminal."""
    for line in paragraph(text, width(), indent=indent, hang=hang) or [""]:
        put(line, bold=bold)


def say_notes(notes: Iterable[str]) -> None:
    """Prints each note as a paragraph of its own."""
    for note in notes:
        say(f"note: {note}")


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
