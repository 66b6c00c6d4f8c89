"""Code that a run's plots share: sections, hover texts, and the colours of roles."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

from chipwise.core.page.figures import Figure, Trace, escape
from chipwise.design.report import facts, words
from chipwise.design.report.record import RunRecord, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One view of a plot; if a plot has several views, buttons switch between them."""

    label: str
    figure: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot's section of the page with its views; ``empty`` says why there are no views."""

    key: str
    title: str
    caption: str
    views: tuple[View, ...]
    empty: str


def detail(record: RunRecord, trial: Trial) -> str:
    """Facts about a candidate, as the lines of its hover text."""
    lines = [f"<b>{escape(facts.name(record, trial).capitalize())}</b> · {escape(trial.state)}"]
    lines += [escape(line) for line in textwrap.wrap(trial.summary, 64)]
    rung = "" if trial.rung is None else f" · rung {trial.rung}"
    lines.append(f"{words.count(trial.parameters)} parameters · weights {escape(trial.weights)}{rung}")
    quality = facts.quality(record, trial)
    if facts.by_law(record):
        loss = record.words.span(quality.value, quality.low, quality.high, facts.LOSS)
        lines.append(f"loss <b>{loss}</b> nats per token (expected)")
    elif quality.value is not None:
        title, shown = record.words.metric.title, record.words.show(quality.value, "loss")
        lines.append(f"{escape(title)} <b>{shown}</b> ({escape(facts.quality_of(trial))})")
        if trial.quantised_loss is not None and trial.loss is not None:
            lines.append(f"before export {record.words.show(trial.loss, 'loss')}")
    else:
        lines.append(f"{escape(record.words.metric.title)} unknown (not trained)")
    if trial.train_cpu_s is not None:
        lines.append(f"trained {words.quantity(trial.train_cpu_s, 'time')} of CPU time")
    lines += [text for metric in record.words.served() if (text := _both(record, trial, metric))]
    if trial.measured:
        lines.append(f"measured on {escape(facts.where(record))}")
    if trial.feasible is not None:
        basis = "measured" if trial.measured else "predicted"
        lines.append(f"{'meets' if trial.feasible else 'breaks'} the constraints ({basis})")
    if trial.clean is False:
        lines.append("measured on a busy machine: not clean")
    if trial.reason:
        lines += [escape(line) for line in textwrap.wrap(trial.reason, 64)]
    return "<br>".join(lines)


def _both(record: RunRecord, trial: Trial, metric: str) -> str:
    measured = (trial.measured or {}).get(metric)
    guess = trial.predicted.get(metric)
    if measured is None and guess is None:
        return ""
    parts = [f"<b>{record.words.show(measured, metric)}</b> measured" if measured is not None else words.NOT_MEASURED]
    if guess is not None:
        parts.append(f"{record.words.span(guess.value, guess.low, guess.high, metric)} predicted")
    return f"{record.words.short(metric)} {', '.join(parts)}"


def colour(record: RunRecord, trial: Trial) -> str:
    """The theme colour of the trial's role."""
    role = record.role(trial)
    return "@accent" if role == "candidate" else f"@{role}"


def symbol(record: RunRecord, number: int, plain: str = "circle") -> str:
    """A trial's marker: a star for the winner, a diamond for the reference design, ``plain`` for other trials."""
    shape = "star" if number == record.winner else "diamond" if number == record.baseline else "circle"
    return plain.replace("circle", shape)


def error_bars(known: Iterable[tuple[float | None, float | None, float | None]]) -> Trace:
    """Horizontal error bars for values with the ends of their intervals."""
    ends = [(value or 0, low or value or 0, high or value or 0) for value, low, high in known]
    return {
        "type": "data",
        "symmetric": False,
        "array": [high - value for value, _, high in ends],
        "arrayminus": [value - low for value, low, _ in ends],
        "thickness": 1,
        "width": 0,
        "color": "@faint",
    }
