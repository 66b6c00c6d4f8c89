"""Writes trials.csv: one row per trial, one column per value, with SI units in the names; unknown values are empty."""

from __future__ import annotations

import csv
import io
import json

from chipwise.design.report import words
from chipwise.design.report.record import RunRecord, Trial

_FIRST = ("number", "role", "state", "rung", "summary", "weights", "parameters")
_QUALITY = ("loss", "perplexity", "quantised_loss", "train_cpu_s")
_LAST = ("clean", "feasible", "on_front", "reason", "started", "ended", "choices")


def columns(record: RunRecord) -> list[str]:
    """The file's columns: fixed ones, and one for every metric that at least one trial has."""
    metrics = _metrics(record)
    served = [
        name
        for metric in metrics
        for name in (
            f"predicted_{words.si_name(metric)}",
            f"predicted_low_{words.si_name(metric)}",
            f"predicted_high_{words.si_name(metric)}",
            f"measured_{words.si_name(metric)}",
        )
    ]
    scores = [f"{part}_{task.name}" for task in record.tasks for part in ("reached", "reached_low", "reached_high")]
    return [*_FIRST, *_QUALITY, *served, *scores, *_LAST]


def _metrics(record: RunRecord) -> list[str]:
    found = {metric for trial in record.trials for metric in (*trial.predicted, *(trial.measured or {}))}
    return [*record.words.served(), *sorted(found - set(record.words.served()))]


def trials_csv(record: RunRecord) -> str:
    """The text of trials.csv, with numbers in full precision."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns(record), lineterminator="\n")
    writer.writeheader()
    writer.writerows(_row(record, trial) for trial in record.trials)
    return stream.getvalue()


def _row(record: RunRecord, trial: Trial) -> dict[str, object]:
    own = (*_FIRST, *_QUALITY, *_LAST)
    row: dict[str, object] = {name: getattr(trial, name) for name in own if hasattr(trial, name)}
    row["role"] = record.role(trial)
    row["on_front"] = trial.number in record.front
    row["choices"] = json.dumps(trial.choices, sort_keys=True)
    for metric in _metrics(record):
        name = words.si_name(metric)
        if guess := trial.predicted.get(metric):
            row[f"predicted_{name}"] = guess.value
            row[f"predicted_low_{name}"], row[f"predicted_high_{name}"] = guess.low, guess.high
        row[f"measured_{name}"] = (trial.measured or {}).get(metric)
    for name, score in trial.tasks.items():
        row[f"reached_{name}"] = score.value
        row[f"reached_low_{name}"], row[f"reached_high_{name}"] = score.low, score.high
    return row
