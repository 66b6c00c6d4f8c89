"""Writes the winner's model card in Markdown; every statement in it comes from the record."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from chipwise.core import units
from chipwise.core.statistics import Z95
from chipwise.design.limits import DERIVED
from chipwise.design.report import by_matrix, facts, insights, law_text, unmet, words
from chipwise.design.report.record import RunRecord, Trial

_ONNX = """
```python
import onnxruntime

model = onnxruntime.InferenceSession("winner/model.onnx", providers=["CPUExecutionProvider"])
print([(item.name, item.shape, item.type) for item in model.get_inputs()])
```"""
_GGUF = """
```bash
llama-cli -m winner/model.gguf -p "The beginning of a text"
```"""


def card(record: RunRecord) -> str:
    """The card as Markdown; without a winner, it says why there is none."""
    winner = record.trial(record.winner)
    parts = [f"# {line_of(record.name)}: " + ("the winner" if winner else "no winner yet"), _opening(record, winner)]
    if record.status == "partial":
        parts.append("The run has not finished; this is what is known so far.")
        parts += [line_of(f"It stopped: {record.stopped}.")] if record.stopped else []
    if told := unmet.verdict(record):
        parts.append(f"**{line_of(told)}**")
    if step := unmet.next_step(record):
        parts.append(line_of(step))
    parts += ["## What chip?", _chip(record)]
    parts += ["## How fast?", _speed(record, winner)]
    each = record.words.entries() if record.words.one_pass() else record.words.labels.tokens
    parts += [f"## What do 1,000 {each} cost?", _per_thousand(record)]
    parts += ["## Was it designed for this chip?", _designed(record, winner)]
    parts += ["## Promised and measured", _promises(record, winner)]
    if by_matrix.known(record):
        shown = markdown_table(by_matrix.head(record), by_matrix.rows(record))
        parts += [f"## {by_matrix.TITLE}", f"{line_of(by_matrix.note(record))}\n\n{shown}"]
    parts += ["## Against the reference design", _reference(record, winner)]
    if record.elsewhere:
        rows = [insights.elsewhere_row(record, device) for device in record.elsewhere]
        shown = markdown_table(insights.elsewhere_head(record), rows)
        parts += ["## On other devices", f"{insights.ELSEWHERE_NOTE}\n\n{shown}"]
    for own in record.words.task.report_sections(record.samples):
        parts += [f"## {own.title}", own.text] if own.text else []
    if record.continuations:
        head, *texts = insights.continued(record)
        parts += ["## What it writes", f"{insights.WRITES_NOTE}\n\n{markdown_table(head, texts)}"]
    if record.tasks:
        parts += ["## On its tasks", _tasks(record, winner)]
    law = None if record.law is None else law_text.told(record.law)
    parts += ["## Data", _data(record) if law is None else "\n".join(f"- {name}: {line_of(law[name])}" for name in law)]
    parts += ["## Training", _training(record, winner)]
    parts += ["## Limits", _limits(record, winner)]
    if winner is not None:
        parts += ["## How to load it", law_text.LOAD if record.law is not None else _load(record)]
    return "\n\n".join(parts) + "\n"


def line_of(text: object) -> str:
    """Text from a file as one line of Markdown, with its markup escaped."""
    line = " ".join(str(text).split())
    return re.sub(r"([\\`*_\[\]<>|#~$])", r"\\\1", line)


def _opening(record: RunRecord, winner: Trial | None) -> str:
    if winner is None:
        return line_of(facts.no_winner(record))
    metric, text = facts.reported_quality(record, winner)
    quality = facts.value(record, winner, metric)
    known = law_text.opening(record) or f"{record.words.metric.title} unknown"
    if quality.value is not None and not facts.by_law(record):
        error = _interval(record, quality.value)
        known = f"{record.words.quality(quality.value)}{error} of the {text} ({line_of(facts.quality_of(winner))})"
    return (
        f"Trial {winner.number}, `{winner.summary.replace('`', '')}`: {words.count(winner.parameters)} parameters, "
        f"weights {line_of(winner.weights)}, {known}."
    )


def _interval(record: RunRecord, loss: float) -> str:
    """Text of the 95 % interval of the winner's test result, if the result is a share such as accuracy; else empty."""
    error = record.test.std_errors[0] if record.test is not None and record.test.std_errors else None
    if error is None or record.words.metric.unit != "share":
        return ""
    ends = sorted((record.words.metric.shown(loss - Z95 * error), record.words.metric.shown(loss + Z95 * error)))
    return f" ({units.show(max(ends[0], 0.0), 'share')} to {units.show(min(ends[1], 1.0), 'share')})"


def _load(record: RunRecord) -> str:
    """Explains how to load the winner's files with Python libraries and with the runtime that serves them."""
    runtime, winner = record.target.runtime, record.trial(record.winner)
    with_library = f"```python\n{record.words.labels.load}\n```"
    file, how = ("model.gguf", _GGUF) if runtime.startswith(("llama.cpp", "wllama")) else ("model.onnx", _ONNX)
    if runtime in ("vllm", "sglang", "trtllm"):
        return f"{with_library}\n\n{line_of(runtime)} serves this folder too."
    measured = winner is not None and winner.measured is not None
    what = "was measured" if measured else f"{line_of(runtime)} loads"
    again = "\n\n`chipwise measure winner` measures it again." if measured and record.target.measures else ""
    again += "\n\n`chipwise serve winner` lets you talk to it." if record.task == "text" else ""
    return f"{with_library}\n\nThe artefact that {what} is `winner/{file}`:\n{how}{again}"


def _chip(record: RunRecord) -> str:
    target = record.target
    cores = f" The machine has {words.times(target.cores, 'core')}." if target.cores else ""
    how = "measured" if target.measures else "predicted"
    return (
        f"{line_of(facts.where(record))}.{cores} All values were {how} for a request with "
        f"{facts.workload(record)}. They hold for this device, runtime and request; no other combination was {how}."
    )


def _speed(record: RunRecord, winner: Trial | None) -> str:
    if winner is None:
        return "Unknown: there is no winner."
    sentences = []
    once = record.words.labels.latency.capitalize() if record.words.one_pass() else "Time to first token"
    of_tokens = () if record.words.one_pass() else (("tpot_p50", "tpot_p99", "Time per output token"),)
    for first, last, text in (("ttft_p50", "ttft_p99", once), *of_tokens):
        half, most = facts.value(record, winner, first), facts.value(record, winner, last)
        sentences.append(
            f"{text}: P50 {record.words.show(half.value, first)} ({half.source}), "
            f"P99 {record.words.show(most.value, last)} ({most.source})."
        )
    for name in record.words.labels.derived:
        if (found := facts.value(record, winner, name)).value is not None:
            title = DERIVED[name].title.capitalize()
            sentences.append(f"{title} of the model: {record.words.show(found.value, name)} ({found.source}).")
    memory = facts.value(record, winner, "peak_memory")
    sentences.append(f"Peak memory: {record.words.show(memory.value, 'peak_memory')} ({memory.source}).")
    if winner.measured is not None:
        known = record.target.instructions
        sentences.append(
            f"Measured on a processor with {line_of(known)}; other processors take different times; their "
            "outputs differ only by rounding, because they add numbers in a different order."
            if known
            else "The instruction set of the processor used for measuring is unknown."
        )
    if winner.clean is False:
        sentences.append("The machine was busy while measuring, so these numbers are not reliable.")
    return " ".join(sentences)


def _per_thousand(record: RunRecord) -> str:
    known = facts.per_thousand(record)
    return f"Time: {line_of(known['time'])}. Energy: {line_of(known['energy'])}. Price: {line_of(known['price'])}."


def _designed(record: RunRecord, winner: Trial | None) -> str:
    space = record.space
    trained = sum(trial.loss is not None for trial in record.trials)
    measured = sum(trial.measured is not None for trial in record.trials)
    answer = "Not yet." if winner is None else "Yes."
    if winner is not None and winner.number == record.baseline:
        answer = "Only its size: the winner is the reference design, which beat all candidates."
    if not record.target.measures:
        return (
            f"{answer} Of {words.count(space.size)} designs, {words.count(space.priced)} had their costs predicted for "
            f"{record.target.title or record.target.device} in {record.target.runtime}, and {trained} were trained. "
            f"{words.times(measured, 'design') if measured else 'Nothing'} was measured there; the other figures are "
            "expected values, and limits on them have the stated chances of being met."
        )
    return (
        f"{answer} Of {words.count(space.size)} designs, {words.count(space.priced)} had their costs predicted by "
        "a model of "
        f"this machine in this runtime, {trained} were trained and {measured} were exported and measured on it. "
        f"Only a measured candidate can win. {facts.bought(record)} {facts.foreseen(record)}".rstrip()
    )


def _promises(record: RunRecord, winner: Trial | None) -> str:
    limits = {item.metric: f"{words.limit(item.text)}" for item in record.constraints}
    if winner is None:
        return "There is no prediction yet, because there is no winner."
    checks = {item.constraint.metric: facts.status_text(item) for item in facts.checks(record, winner)}
    rows = []
    for metric in dict.fromkeys((*record.words.served(), *limits)):
        promise, known = facts.promised(record, winner, metric), facts.value(record, winner, metric)
        real = known.value if known.source in ("measured", "trained", "counted") else None
        if promise.value is None and real is None:
            continue
        off = words.UNKNOWN if real is None or not promise.value else words.signed(real, promise.value)
        shown = facts.promise_text(record, promise, metric), facts.measured_text(record, known, metric)
        rows.append(
            (
                line_of(record.words.label(metric)),
                *shown,
                off,
                line_of(limits.get(metric, "no limit")),
                checks.get(metric, ""),
            )
        )
    if not rows:
        return "No prediction and no measurement of the winner are recorded."
    head = ("metric", "promised (predicted)", "measured", "difference", "limit", "status")
    paid = facts.paid(record, winner)
    return _table(head, rows) + (f"\n\n{line_of(paid)}" if paid else "")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of cells whose text comes from files and is escaped."""
    return _table(head, [[line_of(cell) for cell in row] for row in rows])


def _reference(record: RunRecord, winner: Trial | None) -> str:
    reference = record.trial(record.baseline)
    text = line_of(facts.comparison(record))
    if reference is None or winner is None or winner.number == reference.number:
        return text
    rows: list[tuple[str, ...]] = []
    quality = ("test_loss", "loss") if winner.test_loss is not None else ("loss",)
    quality = (facts.LOSS,) if facts.by_law(record) else quality
    for metric in (*quality, *record.words.served(), "parameters"):
        ours, theirs = facts.value(record, winner, metric), facts.value(record, reference, metric)
        rows.append((record.words.label(metric), _sourced(record, ours, metric), _sourced(record, theirs, metric)))
    if record.constraints:
        broken = [facts.broken_limits(record, trial) for trial in (winner, reference)]
        rows.append(("constraints", *(f"broken: {names}" if names else "none broken" for names in broken)))
    head = ("metric", f"winner (trial {winner.number})", f"reference design (trial {reference.number})")
    return f"{text}\n\n{_table(head, rows)}"


def _tasks(record: RunRecord, winner: Trial | None) -> str:
    text = f"{insights.TASK_NOTE}\n\n{markdown_table(insights.TASK_HEAD, insights.task_rows(record))}"
    if winner is not None and any(score.confusion for score in winner.tasks.values()):
        text += "\n\nConfusion matrices are in `report.html`, the tuned classifiers in `winner/tasks/`."
    return text


def _sourced(record: RunRecord, known: facts.Value, metric: str) -> str:
    return words.UNKNOWN if known.value is None else f"{record.words.show(known.value, metric)} ({known.source})"


def _data(record: RunRecord) -> str:
    data = record.data
    if data is None:
        return "No data was read yet."
    source, entries = line_of(data.source or "an unknown source"), record.words.entries()
    return (
        f"{line_of(data.name)}, from {source}: {words.count(data.entries_train)} training {entries} "
        f"({words.quantity(data.bytes_train, 'bytes')}), {words.count(data.entries_val)} validation {entries} "
        f"({words.quantity(data.bytes_val, 'bytes')}) and {words.count(data.entries_test)} test {entries} "
        f"({words.quantity(data.bytes_test, 'bytes')}). Licence: {line_of(data.licence or words.UNKNOWN)}."
    )


def _training(record: RunRecord, winner: Trial | None) -> str:
    cost = "" if record.budget.footprint is None else f" {line_of(record.budget.footprint.sentence)}"
    whole = f"The whole search used {record.budget.usage}, with seed {record.seed}.{cost}"
    if winner is None or winner.train_cpu_s is None:
        return whole
    kind = record.words.labels.tokens
    tokens = f" on {words.count(winner.curve[-1].tokens)} {kind}" if winner.curve else ""
    took = f"{words.quantity(winner.train_cpu_s, 'time')} of {record.budget.device.upper()} time"
    return f"The winner trained for {took}{tokens}. {whole}"


def _limits(record: RunRecord, winner: Trial | None) -> str:
    lines = list(record.notes)
    if winner is not None and (missed := facts.promises_missed(record, winner.number)):
        names = ", ".join(record.words.label(metric) for metric in missed)
        lines.append(f"Promised and measured differ by 25 % or more: {names}.")
    if facts.by_law(record):
        return "\n".join(f"- {line_of(line)}" for line in [*lines, law_text.QUALITY])
    other = "the tasks above were evaluated too" if record.tasks else "nothing else was evaluated"
    data = record.words.labels.data
    text = (
        f"test {data}, not used for selection" if record.test else f"validation {data}, which also selected the winner"
    )
    lines.append(f"Quality is {record.words.metric.title} of the {text}; {other}.")
    return "\n".join(f"- {line_of(line)}" for line in lines)
