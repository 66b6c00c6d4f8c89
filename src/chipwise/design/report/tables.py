"""Tables for the terminal, with the same facts as the report page."""

from __future__ import annotations

from chipwise.core.layout import Column, Table
from chipwise.design.limits import SPENDING
from chipwise.design.report import cut_pages, facts, words
from chipwise.design.report.record import RunRecord, Trial


def final_table(record: RunRecord) -> Table:
    """Winner, reference design and knee side by side: quality, measured and predicted cost, constraints.

    For a run that started from a model: the original, the pruned model and the truncated model side by side.
    """
    if record.start is not None:
        return _cut_table(record)
    trials = facts.contenders(record)
    table = _side_by_side(record, [_head(record, trial) for trial in trials])
    if not trials:
        return table
    rated = ("throughput", *SPENDING)
    spent = [
        metric for metric in rated if any(facts.value(record, trial, metric).value is not None for trial in trials)
    ]
    quality = ["test_loss"] if any(trial.test_loss is not None for trial in trials) else []
    quality += ["expected_loss"] if facts.by_law(record) else ["loss"]
    for metric in (*quality, *record.words.served(), "parameters", *spent):
        table.add(record.words.short(metric), *[_cell(record, trial, metric) for trial in trials])
    table.add("weights", *[trial.weights for trial in trials])
    if not facts.by_law(record):
        table.add("trained for", *[words.quantity(trial.train_cpu_s, "time") for trial in trials])
    if record.constraints:
        table.add("constraints", *[_verdict(record, trial) for trial in trials])
    return table


def _side_by_side(record: RunRecord, heads: list[str]) -> Table:
    columns = [Column(), *(Column(head=head, right=True, prose=True) for head in heads)]
    return Table(title=f"{record.name} · {facts.where(record)}", columns=columns)


def _cut_table(record: RunRecord) -> Table:
    table = _side_by_side(record, [facts.name(record, trial) for trial in cut_pages.contenders(record)])
    for row in cut_pages.rows(record):
        table.add(*map(str, row))
    return table


def constraint_table(record: RunRecord) -> Table:
    """Every constraint, checked for the winner (or else the reference design): predicted, measured, limit."""
    trial = record.trial(record.winner) or record.trial(record.baseline)
    whose = facts.name(record, trial) if trial else "no winner yet"
    table = Table(
        title=f"Constraints · {whose}",
        columns=[
            Column(head="constraint"),
            *(Column(head=head, right=True, prose=True) for head in ("limit", "promised", "measured")),
            Column(head="status", prose=True),
        ],
        caption="" if trial is None else facts.paid(record, trial) or "",
    )
    for check in facts.checks(record, trial):
        name, limit = record.words.short(check.constraint.metric), words.limit(check.constraint.text)
        table.add(name, limit, *check.shown, facts.status_text(check))
    return table


def _head(record: RunRecord, trial: Trial) -> str:
    if trial.number == record.knee:
        role = words.role(record.role(trial))
        return f"knee\ntrial {trial.number}" if role == "candidate" else f"{role}, knee\ntrial {trial.number}"
    return f"{words.role(record.role(trial))}\ntrial {trial.number}"


def _cell(record: RunRecord, trial: Trial, metric: str) -> str:
    known = facts.value(record, trial, metric)
    if known.value is None:
        return words.NOT_MEASURED if metric in record.words.served() else words.UNKNOWN
    shown = record.words.show(known.value, metric)
    promise = facts.promised(record, trial, metric)
    if known.source == "measured" and promise.value is not None:
        return f"{shown}\n{record.words.show(promise.value, metric)} predicted"
    if known.source == "expected":
        return f"{shown}\nexpected"
    if metric == "loss":
        return shown + ("\nas exported" if trial.quantised_loss is not None else "\nbefore export")
    return shown


def _verdict(record: RunRecord, trial: Trial) -> str:
    states = [item.status for item in facts.checks(record, trial)]
    for status in facts.LEAST_CERTAIN_FIRST:
        if status in states:
            names = [record.words.short(c.constraint.metric) for c in facts.checks(record, trial) if c.status == status]
            return f"{facts.STATUS[status]}: {', '.join(names)}"
    return "all met"
