"""Output of commands: live progress, final tables, JSON."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from chipwise import api
from chipwise.api import answers
from chipwise.cli.output import console, json_of, notices, print_table, put, say, say_notes
from chipwise.core import layout as columns
from chipwise.core import units

UNMET = 4  # exit code of a search whose winner is not known to meet every limit

__all__ = ["bar", "console", "json_of", "live", "notices", "result", "waiting"]


@contextlib.contextmanager
def live() -> Iterator[answers.Observer]:
    """Live progress of a search: a small table in a terminal; elsewhere printed lines."""
    if not console.is_terminal:
        yield _Lines()
        return
    status = answers.Status()
    with Live(_screen(status), console=console, refresh_per_second=4, transient=True) as view:

        def observe(now: answers.Status) -> None:
            view.update(_screen(now))

        yield observe


class _Lines:
    """Progress for output that cannot be redrawn: one line when a phase begins, then at most one every ten seconds."""

    def __init__(self) -> None:
        self._phase, self._said = "", 0.0

    def __call__(self, status: answers.Status) -> None:
        now = time.monotonic()
        if status.phase == self._phase and now - self._said < 10:
            return
        self._phase, self._said = status.phase, now
        print(answers.line_of(status), flush=True)


def _screen(status: answers.Status) -> Group:
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=40),
        TextColumn("{task.fields[spent]} of {task.fields[budget]}{task.fields[left]}"),
    )
    bar.add_task(
        "budget",
        total=max(status.budget, 1e-9),
        completed=int(min(status.spent, status.budget)),
        spent=answers.amount_of(status.spent, status),
        budget=f"{answers.amount_of(status.budget, status)} {answers.UNITS[status.unit][1]}",
        left="" if math.isnan(status.left_s) else f", about {units.show(status.left_s, 'time')} left",
    )
    table = Table.grid(padding=(0, 2))
    table.add_row("phase", f"[bold]{status.phase}[/bold]", status.detail)
    if status.priced or status.trained:
        told = f"{status.trained} trained, {status.measured} measured"
        table.add_row("candidates", f"{status.priced:,} priced", told)
    if status.failed:
        table.add_row("", f"{status.failed} failed", "")
    if status.best_loss is not None:
        table.add_row("best so far", answers.best_of(status), status.best)
    return Group(table, bar)


@contextlib.contextmanager
def bar(title: str, *, quiet: bool = False) -> Iterator[Callable[[str, float], None]]:
    """A progress bar on standard error; the returned function takes a description and the finished share."""
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


def result(record: api.RunRecord, folder: Path) -> None:
    """Prints the result or state of a search: the compared designs, the constraints, and the paths of the files."""
    if answers.contenders(record) or record.start is not None:
        print_table(answers.final_table(record))
    else:
        trained = sum(bool(trial.train_cpu_s) for trial in record.trials)
        say(f"{record.name}: {trained} of {len(record.trials)} trials trained, no winner yet")
    print_table(answers.constraint_table(record))
    if record.answer.alternatives:
        say(answers.without_search(record))
    put(f"report: {folder / 'report.html'}")
    put(f"card: {folder / 'card.md'}")
    if record.winner is not None:
        winner = folder / "winner"
        put(f"winner: {winner}")
        if (winner / "index.html").is_file():
            use = "talk to it" if record.task == "text" else "try it"
            put(f"{use} in a browser, at http://127.0.0.1:8000: python -m http.server -b 127.0.0.1 -d {winner}")
        elif record.task == "text" and any(winner.glob("model.*")):
            put(f"talk to it: chipwise serve {winner}")
    cost, stopped = record.budget.footprint, record.stopped and f"stopped: {record.stopped}"
    for line in (
        record.space.widened,
        record.space.aligned,
        cost and cost.sentence,
        answers.unmet.verdict(record),
        stopped,
    ):
        if line:
            say(line)
    if step := answers.unmet.next_step(record):
        what, command = step.rsplit(": ", 1)
        say(f"{what}:")
        put(f"  {command.replace('FOLDER', str(folder))}")


def ending(record: api.RunRecord) -> int:
    """Returns the exit code for ``record``: 4 if the winner is not known to meet every limit, else 0."""
    return UNMET if answers.unmet.unmet(record) else 0


def _checks(checks: Mapping[str, answers.CheckError]) -> columns.Table:
    """Returns a table of the errors found by the calibration's check: one row for each quantity and range of sizes."""
    numbers = columns.numeric("mean error", "rank corr.", "models", "MB of weights")
    table = columns.Table(
        title="check: whole models, each predicted by a fit to the other models",
        columns=[columns.Column(head="predicted"), *numbers],
    )
    for name, check in checks.items():
        rank = "" if check.kendall_tau is None else f"{check.kendall_tau:.2f}"
        table.add(answers.label_of(name), units.show(check.mape, "share"), rank, str(check.models), check.megabytes)
    return table


def profile(found: api.MachineProfile, path: Path) -> None:
    """Prints the profile of a calibrated machine."""
    threads = f"{found.threads} thread{'s' if found.threads > 1 else ''}"
    table = columns.Table(
        title=f"{found.machine.name} · {found.runtime} {found.runtime_version}, {threads}",
        columns=[columns.Column(head="measured"), columns.Column(head="value", right=True)],
    )
    for name, rate in found.peaks.items():
        table.add(f"peak of matrix products, {name}", units.show(rate, "compute"))
    for name, rate in found.roofs.items():
        table.add(f"bandwidth, {name}", units.show(rate, "bandwidth"))
    table.add("memory of a process without a model", units.show(found.memory.base_bytes, "bytes"))
    print_table(table)
    print_table(_checks(found.checks))
    say_notes(found.notes)
    put(f"profile: {path}")


def counts(what: dict[str, Any], as_json: bool) -> None:
    """Prints what a command changed in a store, such as ``imported: 3, file: kit-results.json``."""
    if as_json:
        json_of(what)
    else:
        console.print(", ".join(f"{name}: {value}" for name, value in what.items()), highlight=False)
