"""Compares two runs: limits, predictions and measurements, designs, and both fronts in one plot."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from chipwise.core.digest import plain
from chipwise.core.layout import Column, Table
from chipwise.core.page.document import document
from chipwise.core.page.figures import Figure, Trace, axis, escape, figure, scatter
from chipwise.core.page.markup import empty, safe, section, text_table
from chipwise.design.report import facts, unmet, words
from chipwise.design.report.plots.common import detail
from chipwise.design.report.record import RunRecord, Trial
from chipwise.errors import InputError

COLOURS = ("@accent", "@baseline")


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoRuns:
    """The records of two runs of one task, with the names under which they are shown."""

    names: tuple[str, str]
    records: tuple[RunRecord, RunRecord]

    def __post_init__(self) -> None:
        first, second = self.records
        if first.task != second.task:
            raise InputError(
                f"{self.names[0]} searched for {first.task} and {self.names[1]} for {second.task}: their losses and "
                "requests are not comparable; compare runs of one task"
            )

    @property
    def task(self) -> str:
        """The task of both runs."""
        return self.records[0].task

    @property
    def winners(self) -> tuple[Trial | None, ...]:
        """The winner of each run; None for a run without a winner."""
        return tuple(record.trial(record.winner) for record in self.records)

    @property
    def words(self) -> words.Words:
        """The terms of the task of both runs: its metric, and the names of its data and requests."""
        return self.records[0].words

    def of_winners(self, of: Callable[[RunRecord, Trial], str]) -> list[str]:
        """Applies a function to each run's winner; gives a text for a run without a winner."""
        both = zip(self.records, self.winners, strict=True)
        return ["no winner" if winner is None else of(record, winner) for record, winner in both]


Rows = list[tuple[str, ...]]


def sections(runs: TwoRuns) -> dict[str, tuple[tuple[str, ...], Rows]]:
    """Maps the title of each table of the comparison to the table's header and rows."""
    return {
        "Runs": (("", *runs.names), _overview(runs)),
        "Limits": (("limit on", *_each(runs, "limit", "winner")), _limits(runs)),
        "Promised and measured": (("of the winner", *_each(runs, "promised", "measured")), _promises(runs)),
        "Designs": (("of the winner", *runs.names), _designs(runs)),
    }


def _each(runs: TwoRuns, *heads: str) -> list[str]:
    return [f"{name}: {head}" for name in runs.names for head in heads]


def _row(runs: TwoRuns, name: str, of: Callable[[RunRecord], str]) -> tuple[str, ...]:
    return (name, *map(of, runs.records))


def _overview(runs: TwoRuns) -> Rows:
    def state(record: RunRecord) -> str:
        if record.status == "partial":
            return "not finished"
        return "finished, limits not kept" if unmet.unmet(record) else "finished"

    def data(record: RunRecord) -> str:
        return words.UNKNOWN if record.data is None else record.data.name

    return [
        _row(runs, "state", state),
        _row(runs, "designed for", facts.where),
        _row(runs, "request", facts.workload),
        _row(runs, "data", data),
        _row(runs, "used", lambda record: record.budget.usage),
        _row(runs, "seed", lambda record: str(record.seed)),
        _row(runs, "designs in the space", lambda record: words.count(record.space.size)),
        _row(runs, "trained", lambda record: words.count(sum(trial.loss is not None for trial in record.trials))),
        _row(runs, "measured", lambda record: words.count(sum(bool(trial.measured) for trial in record.trials))),
    ]


def _limits(runs: TwoRuns) -> Rows:
    rows = []
    for metric in dict.fromkeys(item.metric for record in runs.records for item in record.constraints):
        cells: list[str] = []
        for record, winner in zip(runs.records, runs.winners, strict=True):
            held = [item for item in record.constraints if item.metric == metric]
            checks = [] if winner is None else [c for c in facts.checks(record, winner) if c.constraint in held]
            cells.append(", ".join(words.limit(item.text) for item in held) or "no limit")
            cells.append(", ".join(facts.status_text(check) for check in checks) or ("no winner" if held else ""))
        rows.append((runs.words.label(metric), *cells))
    return rows


def _promises(runs: TwoRuns) -> Rows:
    rows = []
    for metric in runs.words.served():
        cells: list[str] = []
        for record, winner in zip(runs.records, runs.winners, strict=True):
            if winner is None:
                cells += ["no winner", ""]
                continue
            cells.append(facts.promise_text(record, facts.promised(record, winner, metric), metric))
            cells.append(facts.measured_text(record, facts.value(record, winner, metric), metric))
        if any(cell not in (words.UNKNOWN, words.NOT_MEASURED, "no winner", "") for cell in cells):
            rows.append((runs.words.label(metric), *cells))
    return rows


def _designs(runs: TwoRuns) -> Rows:
    def cells(name: str, of: Callable[[Trial], str]) -> tuple[str, ...]:
        return (name, *runs.of_winners(lambda record, winner: of(winner)))

    quality = facts.reported_quality(runs.records[0], *(winner for winner in runs.winners if winner is not None))[0]
    known = [quality] if quality == facts.LOSS else list(dict.fromkeys((quality, "loss")))
    return [
        cells("trial", lambda trial: str(trial.number)),
        cells("design", lambda trial: trial.summary),
        cells("weights", lambda trial: trial.weights),
        cells("parameters", lambda trial: words.count(trial.parameters)),
        *[(runs.words.label(metric), *runs.of_winners(functools.partial(_quality, metric))) for metric in known],
        cells("trained for", lambda trial: words.quantity(trial.train_cpu_s, "time")),
    ]


def _quality(metric: str, record: RunRecord, trial: Trial) -> str:
    return record.words.show(facts.value(record, trial, metric).value, metric)


def notes(runs: TwoRuns) -> list[str]:
    """Sentences on what makes the two runs hard to compare, and on what is missing."""
    found = []
    for name, record in zip(runs.names, runs.records, strict=True):
        if record.status == "partial":
            found.append(f"{name} has not finished; this shows what is known so far")
        if told := unmet.verdict(record):
            found.append(f"{name}: {told}")
    first, second = runs.records
    if first.data != second.data:
        found.append("their data differ, so losses are not comparable")
    if first.workload != second.workload:
        found.append("their requests differ, so times are not comparable")
    if facts.where(first) != facts.where(second):
        found.append("they were designed for different targets")
    return found


def tables(runs: TwoRuns) -> list[Table]:
    """The comparison as tables for the terminal."""
    found = []
    for title, (head, rows) in sections(runs).items():
        columns = [Column(head=head[0], prose=True), *(Column(head=name, right=True, prose=True) for name in head[1:])]
        made = Table(title=title, columns=columns)
        for row in rows:
            made.add(*row)
        found.append(made)
    return found


def to_data(runs: TwoRuns) -> dict[str, object]:
    """The comparison as JSON values in SI units."""
    metric = facts.latency_metric(runs.records[0])
    return {
        "runs": [
            {
                "name": name,
                "status": record.status,
                "stopped": record.stopped,
                "unmet": plain(unmet.unmet(record)),
                "seed": record.seed,
                "task": record.task,
                "limits": plain(record.constraints),
                "winner": None if winner is None else plain(winner),
                "front": [
                    {"trial": trial.number, metric: cost, "quality": loss}
                    for trial, cost, loss in _front(record, metric)
                ],
            }
            for name, record, winner in zip(runs.names, runs.records, runs.winners, strict=True)
        ],
        "notes": notes(runs),
    }


def page(runs: TwoRuns) -> str:
    """The comparison as one self-contained HTML document.

    Raises:
        MissingExtra: plotly, whose script the page contains, is not installed.
    """
    drawn = _figure(runs)
    title = " and ".join(runs.names)
    parts = [f'<header><div class="brand">chipwise</div><h1>{safe(title)}</h1></header>']
    if told := notes(runs):
        parts.append(f'<div class="banner">{safe("; ".join(told))}.</div>')
    if drawn is None:
        parts.append(section("fronts", "Fronts", empty("Neither run has trained anything yet.")))
    else:
        room = f'<div class="plot" id="plot-fronts" style="min-height:{drawn["layout"]["height"]}px"></div>'
        parts.append(section("fronts", "Fronts", room, "Filled points were measured, open points are predicted."))
    for name, (head, rows) in sections(runs).items():
        parts.append(section(name.split()[0].lower(), name, text_table(head, rows)))
    return document(f"{title} · chipwise", "\n".join(parts), figures={} if drawn is None else {"fronts": [drawn]})


def _front(record: RunRecord, metric: str) -> list[tuple[Trial, float, float]]:
    """The trials on a run's front with their cost and quality, cheapest first."""
    known = [item for item in _points(record, metric) if item[0].number in record.front]
    return sorted(known, key=lambda item: item[1])


def _points(record: RunRecord, metric: str) -> list[tuple[Trial, float, float]]:
    found = []
    for trial in record.trials:
        cost, loss = facts.value(record, trial, metric).value, facts.quality(record, trial).value
        if cost is not None and loss is not None:
            found.append((trial, cost, loss if facts.by_law(record) else record.words.metric.shown(loss)))
    return found


def _figure(runs: TwoRuns) -> Figure | None:
    metric = facts.latency_metric(runs.records[0])
    points = [_points(record, metric) for record in runs.records]
    everything = [point for each in points for point in each]
    if not everything:
        return None
    measure = runs.words.metric
    by_law = all(map(facts.by_law, runs.records))
    x = axis([cost for _, cost, _ in everything], words.kind(metric), runs.words.label(metric))
    kind, title = ("count", "loss, nats per token") if by_law else (measure.unit, f"validation {measure.title}")
    y = axis([loss for *_, loss in everything], kind, title, log=False, pad=0.1)
    traces: list[Trace] = []
    for name, record, known, colour in zip(runs.names, runs.records, points, COLOURS, strict=True):
        if front := _front(record, metric):
            traces.append(_line(name, front, colour))
        if known:
            traces.append(_markers(name, record, known, colour))
    return figure(traces, height=500, xaxis=x, yaxis=y)


def _line(name: str, front: Sequence[tuple[Trial, float, float]], colour: str) -> Trace:
    _, costs, losses = zip(*front, strict=True)
    line = {"shape": "hv", "color": colour, "width": 2}
    return scatter("lines", f"front of {escape(name)}", costs, losses, line=line)


def _markers(name: str, record: RunRecord, known: Sequence[tuple[Trial, float, float]], colour: str) -> Trace:
    won = [trial.number == record.winner for trial, *_ in known]
    open_ = ["" if trial.measured else "-open" for trial, *_ in known]
    return scatter(
        "markers",
        f"{escape(name)} (star: winner)",
        [cost for _, cost, _ in known],
        [loss for *_, loss in known],
        hover=[detail(record, trial) for trial, *_ in known],
        marker={
            "symbol": [("star" if best else "circle") + kind for best, kind in zip(won, open_, strict=True)],
            "color": colour,
            "size": [18 if best else 9 for best in won],
        },
    )


def names_of(folders: Sequence[Path]) -> tuple[str, str]:
    """Names of the two folders, or their paths if the names are equal."""
    first, second = folders
    return (first.name, second.name) if first.name != second.name else (str(first), str(second))
