"""Report and card of a run that pruned a pretrained model.

They compare the original, the pruned model, and a model that keeps only the first layers (truncation).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chipwise.core import units
from chipwise.core.page.document import document
from chipwise.core.page.markup import safe, section, text_table
from chipwise.core.record import Record
from chipwise.design.report import facts, insights, words
from chipwise.design.report.card import line_of, markdown_table
from chipwise.design.report.html import budget, constraints, facts_list, header, notes
from chipwise.design.report.record import RunRecord, Start, Trial

_HOW = {
    "exact": "Every block was evaluated alone at each of its smaller sizes on held-out text; an integer "
    "programme chose the sizes within the limits that have the least sum of losses, and proved them optimal.",
    "shared": "The original's weights were trained as a supernet of the cuts near the limits; a search chose the "
    "cut by the supernet's scores.",
}
_LINKS = (("constraints", "Constraints"), ("contenders", "Contenders"), ("how", "Choice"), ("about", "Run"))
_CAPTION = (
    "“First layers alone” is plain truncation: it keeps as many layers as the same limits allow, and is healed by "
    "distillation from the original for as many steps as the cut. Times are measured alternately. Distances "
    "are from the original's outputs on held-out text; 0 means the same model."
)


def page(record: RunRecord) -> str:
    """The report as one self-contained HTML document."""
    head = header(record, f"{_origin(record)} · {facts.where(record)}", _LINKS)
    verdict = f'<div class="answer"><h2>{safe(title(record))}</h2><p class="verdict">{safe(said(record))}</p></div>'
    columns = ["", *[facts.name(record, trial) for trial in contenders(record)]]
    sections = [
        constraints(record),
        section("contenders", "Original, cut, first layers alone", text_table(columns, rows(record)), safe(_CAPTION)),
        insights.tasks(replace(record, tasks=tuple(task for task in record.tasks if task.name != "original"))),
        section("how", "How the cut was chosen", f"<p>{safe(_how(record))}</p>"),
        budget(record),
        section("about", "Data and machine", facts_list(_about(record))),
        notes(record),
    ]
    foot = f"<footer>Made by chipwise {safe(record.version)}, seed {record.seed}.</footer>\n"
    return document(f"{record.name} · chipwise", f"{head}{verdict}{''.join(sections)}{foot}", figures={})


def card(record: RunRecord) -> str:
    """The card of the winner's folder, as Markdown."""
    columns = ["", *[facts.name(record, trial) for trial in contenders(record)]]
    parts = [
        f"# {line_of(record.name)}",
        f"{title(record)}. {said(record)}",
        f"{line_of(_origin(record))}. {_how(record)}",
        f"Measured on {facts.where(record)}; a request is {facts.workload(record)}.",
        markdown_table(columns, rows(record)),
        _CAPTION,
        line_of(f"Data: {_about(record)['text']}; licence: {_about(record)['licence']}."),
        *(f"- {line_of(note)}" for note in record.notes),
    ]
    return "\n\n".join(parts) + "\n"


def contenders(record: RunRecord) -> list[Trial]:
    """The trials of the original, the pruned model and the truncated model, as far as they exist."""
    return sorted(record.trials, key=lambda trial: trial.number)


def title(record: RunRecord) -> str:
    """A title that says whether a pruned model within the limits was found."""
    return "The cut meets its limits" if record.winner is not None else "No cut was measured within the limits yet"


def said(record: RunRecord) -> str:
    """One sentence that compares the pruned and the truncated model with the original."""
    start, trials = _start(record), contenders(record)
    original, rest = trials[0], trials[1:]
    sentences = []
    for trial in rest:
        parts = [
            f"{units.show((trial.parameters or 0) / (original.parameters or 1), 'share', digits=2)} of the parameters"
        ]
        shares = {metric: _share(record, trial, original, metric) for metric in ("ttft_p50", "tpot_p50", "peak_memory")}
        parts += [
            f"{share} of the {record.words.label(name).replace(',', '')}" for name, share in shares.items() if share
        ]
        if distances := start.distances.get(str(trial.number)):
            parts.append(f"at a distance of {distances[-1]:.4f}")
        sentences.append(f"{facts.name(record, trial)}: {', '.join(parts)}")
    return f"Of the original, {'; '.join(sentences)}." if sentences else "Nothing was cut yet."


def rows(record: RunRecord) -> Iterator[list[str]]:
    """One row per fact: the name of the fact, then its value for each contender."""
    start, trials = _start(record), contenders(record)
    original = trials[0]
    yield ["design", *[trial.summary for trial in trials]]
    for name in ("heads", "neurons"):
        label = {"heads": "KV heads of each layer", "neurons": "FFN neurons of each layer"}[name]
        yield [label, *[", ".join(map(str, Record(trial.choices).sequence(name, int))) or "all" for trial in trials]]
    tasks = [f"{task.bar.metric if task.bar else _metric(record, task.name)}@{task.name}" for task in record.tasks]
    for metric in ("parameters", *record.words.served(), "loss", *tasks):
        if any(facts.value(record, trial, metric).value is not None for trial in trials):
            yield [record.words.label(metric), *[_cell(record, trial, original, metric) for trial in trials]]
    distances = [start.distances.get(str(trial.number)) for trial in trials]
    yield [
        "distance before → after healing",
        *["0" if d is None else _healed(*d) for d in distances],
    ]
    healed = [words.quantity(trial.train_cpu_s, "time", missing="not healed") for trial in trials]
    yield ["healing", *[f"{start.steps} steps, {h}" if h != "not healed" else h for h in healed]]


def _healed(before: float, after: float) -> str:
    return f"{before:.4f} → {after:.4f}" if after < before else f"{before:.4f}; healing did not help and was left out"


def _metric(record: RunRecord, task: str) -> str:
    found = [trial.tasks[task].metric for trial in record.trials if task in trial.tasks]
    return next((metric for metric in found if metric), "accuracy")


def _cell(record: RunRecord, trial: Trial, original: Trial, metric: str) -> str:
    known = facts.value(record, trial, metric)
    if known.value is None:
        return "1 (itself)" if trial is original and words.of_task(metric) else words.UNKNOWN
    shown = record.words.span(known.value, known.low, known.high, metric)
    share = _share(record, trial, original, metric) if trial is not original else None
    return f"{shown} · {share}" if share else shown


def _share(record: RunRecord, trial: Trial, original: Trial, metric: str) -> str | None:
    ours, theirs = facts.value(record, trial, metric).value, facts.value(record, original, metric).value
    return None if ours is None or not theirs else units.show(ours / theirs, "share")


def _origin(record: RunRecord) -> str:
    return f"Started from {_start(record).source}"


def _how(record: RunRecord) -> str:
    size = words.count(record.space.size)
    return (
        f"{_HOW[_start(record).method]} {size} different cuts are possible. The matrices that follow cut parts "
        "were refitted by least squares; then the cut was trained to reproduce the original's outputs."
    )


def _about(record: RunRecord) -> dict[str, str]:
    data, target = record.data, record.target
    return {
        "text": "not read"
        if data is None
        else f"{data.name}, {words.count(data.entries_train)} entries to heal with, "
        f"{words.count(data.entries_val)} held out",
        "licence": (data.licence if data else None) or words.UNKNOWN,
        "source": (data.source if data else None) or words.UNKNOWN,
        "processor": target.cpu or words.UNKNOWN,
        "cores": words.count(target.cores),
        "runtime": f"{target.runtime} {target.runtime_version or '(version unknown)'}, 1 thread",
        "seed": str(record.seed),
        "status": record.status,
    }


def _start(record: RunRecord) -> Start:
    assert record.start is not None
    return record.start
