"""Tables for the terminal, from the same facts as the page."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from chipwise.reporting import cut, facts, words
from chipwise.reporting.record import RunRecord, Trial
from chipwise.space.constraints import SPENDING

_STATUS = {
    "met": ("met", "green"),
    "broken": ("broken", "red"),
    "paid": ("beyond, and paid for", "yellow"),
    "expected": ("expected, not measured", "yellow"),
    "at risk": ("at risk, not measured", "yellow"),
    "unknown": ("unknown", "yellow"),
}


def final_table(record: RunRecord) -> Table:
    """Winner, baseline and knee side by side: quality, measured and predicted cost, constraints.

    Where the run started from a model, the original, its cut and its first layers alone.
    """
    if record.start is not None:
        return _cut_table(record)
    table = Table(title=Text(f"{record.name} · {facts.where(record)}"), title_justify="left", show_lines=False)
    table.add_column("")
    trials = contenders(record)
    for trial in trials:
        table.add_column(Text(_head(record, trial)), justify="right")
    if not trials:
        return table
    spent = [metric for metric in SPENDING if any(facts.value(trial, metric).value is not None for trial in trials)]
    for metric in ("bits_per_byte", *words.SERVED, "parameters", *spent):
        table.add_row(Text(words.short(metric)), *[_cell(record, trial, metric) for trial in trials])
    table.add_row(Text("weights"), *[Text(trial.weights) for trial in trials])
    table.add_row(Text("trained for"), *[Text(words.quantity(trial.train_cpu_s, "time")) for trial in trials])
    if record.constraints:
        table.add_row(Text("constraints"), *[_verdict(record, trial) for trial in trials])
    return table


def _cut_table(record: RunRecord) -> Table:
    table = Table(title=Text(f"{record.name} · {facts.where(record)}"), title_justify="left", show_lines=False)
    table.add_column("")
    for trial in cut.contenders(record):
        table.add_column(Text(facts.name(record, trial)), justify="right")
    for row in cut.rows(record):
        table.add_row(*map(Text, row))
    return table


def contenders(record: RunRecord) -> list[Trial]:
    """Winner, baseline and knee, as far as they are known, each once."""
    numbers = dict.fromkeys((record.winner, record.baseline, record.knee))
    return [trial for number in numbers if (trial := record.trial(number))]


def constraint_table(record: RunRecord) -> Table:
    """Every constraint against the winner (the baseline where there is none): promised, measured, limit."""
    trial = record.trial(record.winner) or record.trial(record.baseline)
    whose = facts.name(record, trial) if trial else "no winner yet"
    table = Table(title=Text(f"Constraints · {whose}"), title_justify="left")
    for name in ("constraint", "limit", "promised", "measured", "status"):
        table.add_column(name, justify="left" if name in ("constraint", "status") else "right")
    checks = {item.constraint: item for item in facts.checks(record, trial)} if trial else {}
    for constraint in record.constraints:
        check = checks.get(constraint)
        text, colour = _STATUS[check.status if check else "unknown"]
        table.add_row(
            Text(words.short(constraint.metric)),
            Text(words.limit(constraint.text)),
            *map(Text, check.shown if check else (words.UNKNOWN, words.NOT_MEASURED)),
            Text(text, style=colour),
        )
    if trial is not None and (paid := facts.paid(record, trial)):
        table.caption, table.caption_justify = Text(paid), "left"
    return table


def _head(record: RunRecord, trial: Trial) -> str:
    if trial.number == record.knee:
        role = record.role(trial)
        return f"knee\ntrial {trial.number}" if role == "candidate" else f"{role}, knee\ntrial {trial.number}"
    return f"{record.role(trial)}\ntrial {trial.number}"


def _cell(record: RunRecord, trial: Trial, metric: str) -> Text:
    known = facts.value(trial, metric)
    if known.value is None:
        return Text(words.NOT_MEASURED if metric in words.SERVED else words.UNKNOWN, style="dim")
    text = Text(words.show(known.value, metric))
    promise = facts.promised(record, trial, metric)
    if known.source == "measured" and promise.value is not None:
        return text.append(f"\n{words.show(promise.value, metric)} predicted", style="dim")
    if known.source == "predicted":
        return text.append("\npredicted", style="dim")
    if metric == "bits_per_byte":
        text.append("\nas exported" if trial.quantised_bits_per_byte is not None else "\nbefore export", style="dim")
    return text


def _verdict(record: RunRecord, trial: Trial) -> Text:
    states = [item.status for item in facts.checks(record, trial)]
    for status in ("broken", "unknown", "at risk", "paid", "expected"):
        if status in states:
            names = [words.short(c.constraint.metric) for c in facts.checks(record, trial) if c.status == status]
            text, colour = _STATUS[status]
            return Text(f"{text}: {', '.join(names)}", style=colour)
    return Text("all met", style="green")
