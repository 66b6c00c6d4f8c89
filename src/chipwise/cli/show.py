"""What commands print: live progress, final tables, JSON."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from chipwise.core import units
from chipwise.core.digest import plain
from chipwise.run.progress import Observer, Status

console = Console()
notices = Console(stderr=True)


def json_of(value: object) -> None:
    """Prints ``value`` as JSON on standard output."""
    print(json.dumps(plain(value), indent=1, allow_nan=False))


@contextlib.contextmanager
def live() -> Iterator[Observer]:
    """Live progress of a search: a small table in a terminal, a line for each phase elsewhere."""
    if not console.is_terminal:
        yield _Lines()
        return
    status = Status()
    with Live(_screen(status), console=console, refresh_per_second=4, transient=True) as view:

        def observe(now: Status) -> None:
            view.update(_screen(now))

        yield observe


class _Lines:
    """Progress where lines cannot be redrawn: one at each new phase, and at most one every ten seconds."""

    def __init__(self) -> None:
        self._phase, self._said = "", 0.0

    def __call__(self, status: Status) -> None:
        now = time.monotonic()
        if status.phase == self._phase and now - self._said < 10:
            return
        self._phase, self._said = status.phase, now
        print(_line(status), flush=True)


def _line(status: Status) -> str:
    best = f"best {status.best_bits_per_byte:.3f} bits/byte" if status.best_bits_per_byte is not None else "no best yet"
    return (
        f"[{status.spent_cpu_s:5.0f}/{status.budget_cpu_s:.0f} CPU-s] {status.phase}: {status.priced:,} priced, "
        f"{status.trained} trained, {status.measured} measured, {best}"
        + (f"; {status.detail}" if status.detail else "")
    )


def _screen(status: Status) -> Group:
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=40),
        TextColumn("{task.fields[spent]} of {task.fields[budget]} CPU time, about {task.fields[left]} left"),
    )
    bar.add_task(
        "budget",
        total=max(status.budget_cpu_s, 1e-9),
        completed=min(status.spent_cpu_s, status.budget_cpu_s),
        spent=units.show(status.spent_cpu_s, "time"),
        budget=units.show(status.budget_cpu_s, "time"),
        left=units.show(status.left_s, "time"),
    )
    table = Table.grid(padding=(0, 2))
    table.add_row("phase", f"[bold]{status.phase}[/bold]", status.detail)
    table.add_row("candidates", f"{status.priced:,} priced", f"{status.trained} trained, {status.measured} measured")
    if status.failed:
        table.add_row("", f"{status.failed} failed", "")
    if status.best_bits_per_byte is not None:
        table.add_row("best so far", f"{status.best_bits_per_byte:.3f} bits/byte", status.best)
    return Group(table, bar)


@contextlib.contextmanager
def bar(title: str, *, quiet: bool = False) -> Iterator[Callable[[str, float], None]]:
    """A progress bar fed by ``(what, share done)``; on standard error, so that output stays clean."""
    if quiet:
        yield lambda what, share: None
        return
    columns = (TextColumn(title), BarColumn(bar_width=40), TextColumn("{task.percentage:.0f} %  {task.description}"))
    with Progress(*columns, console=notices, transient=True) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda what, share: progress.update(task, completed=share, description=what)


@contextlib.contextmanager
def waiting(title: str, *, quiet: bool = False) -> Iterator[None]:
    """A spinner on standard error."""
    if quiet:
        yield
        return
    with notices.status(title):
        yield
