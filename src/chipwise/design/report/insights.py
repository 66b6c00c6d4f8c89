"""Shows a run's findings besides its winner: scores on tasks, reasons for the result, costs on other devices.

Functions that return rows or sentences serve the page and the card; those that return sections serve only the page.
"""

from __future__ import annotations

from typing import Final

from chipwise.core import units
from chipwise.core.page.markup import safe, section, table, text_table
from chipwise.design.limits import SPENDING
from chipwise.design.report import facts, words
from chipwise.design.report.record import Answer, Elsewhere, Relaxed, RunRecord, TaskScore, Trial

ELSEWHERE_NOTE: Final = (
    "Costs on the other devices are expected, not measured: they are predicted as by chipwise estimate, in the runtime "
    "named here, with 90 % intervals where these were validated."
)
WRITES_NOTE: Final = (
    "Each model continues the first words of ten test entries with the tokens that its exported graph finds likeliest."
)
TASK_HEAD: Final = ("task", "contender", "score", "95 % interval", "training items", "test items", "evaluated model")
TASK_NOTE: Final = (
    "Each contender answered held-out items once; a hash of the text decides which items are held out. Minimum scores "
    "are compared with the score itself. The interval is the range in which the score on another sample of equal size "
    "would lie. These scores are not predicted."
)


def task_rows(record: RunRecord) -> list[list[str]]:
    """For each task: scores of the winner, the reference design, other contenders, and the TF-IDF baseline."""
    rows = []
    for task in record.tasks:
        evaluated = [trial for trial in record.trials if task.name in trial.tasks]
        order = {"winner": 0, "baseline": 1, "candidate": 2, "original": 3}
        evaluated.sort(key=lambda trial: (order[record.role(trial)], trial.number))
        rows += [[task.name, facts.name(record, trial), *_score(record, trial.tasks[task.name])] for trial in evaluated]
        if task.bar is not None:
            rows.append([task.name, task.bar.method or "TF-IDF and a linear model", *_score(record, task.bar)])
        if not evaluated:
            rows.append([task.name, "none yet", *[words.UNKNOWN] * 5])
    return rows


def _score(record: RunRecord, score: TaskScore) -> list[str]:
    if score.value is None:
        return [words.UNKNOWN, "", "", "", score.failed or ""]
    metric = f"{score.metric}@"
    interval = f"{record.words.show(score.low, metric)} to {record.words.show(score.high, metric)}"
    name = "" if score.metric == "accuracy" else f" ({score.metric})"
    counts = [words.count(score.train_items), words.count(score.test_items)]
    how = f"{score.judged}, {score.method}d" if score.judged and score.method == "tune" else score.judged
    return [record.words.show(score.value, metric) + name, interval, *counts, how]


def tasks(record: RunRecord) -> str:
    """The page's section on the run's tasks; empty if it has none."""
    if not record.tasks:
        return ""
    shown = text_table(TASK_HEAD, task_rows(record), numbers={2, 3, 4, 5})
    return section("tasks", "Tasks", shown, safe(TASK_NOTE))


def knee(record: RunRecord) -> str:
    """A paragraph on the knee of the front: its trial, why it is the knee, and how certain its quality is."""
    trial = record.trial(record.knee)
    if trial is None:
        return "The front has no bend, so there is no knee."
    why = record.answer.knee_why or ""
    for goal in record.objectives:
        why = why.replace(goal.metric, record.words.label(goal.metric))
    why = f" {why[0].upper()}{why[1:]}." if why else ""
    return f"The knee is trial {trial.number} ({trial.summary}).{why} {trained(record, trial)}"


def trained(record: RunRecord, trial: Trial) -> str:
    """A sentence that says whether the trial was trained in full."""
    if facts.by_law(record):
        return "Its loss is what the law expects; nothing was trained."
    longest = max((item.train_cpu_s or 0.0 for item in record.trials), default=0.0)
    spent = trial.train_cpu_s or 0.0
    if spent >= 0.9 * longest > 0:
        return "It was trained in full."
    expected = record.answer.knee_expected
    believed = f"; {record.words.quality(expected)} are expected after full training" if expected else ""
    return (
        f"It was trained for only {words.quantity(spent, 'time')} of {words.quantity(longest, 'time')}{believed}; "
        "it is a suggestion, not a result."
    )


def relaxed(record: RunRecord, item: Relaxed) -> list[str]:
    """A table row: a limit, the gain from relaxing it, each objective's best value before and after, the design."""
    name = record.words.label(item.limit)
    gain = "a first candidate" if item.gain is None else f"{units.signed_percent(item.gain)} of the front"
    changes = [
        f"{record.words.short(goal)} {_goal(record, before, goal)} → {_goal(record, after, goal)}"
        for goal, (before, after) in item.best.items()
        if before != after and after is not None
    ]
    if item.summary is None:
        return [name, "nothing", "no change", ""]
    unit = "" if record.words.metric.more_is_better else f" {record.words.metric.title}"
    doubt = f"predicted with ± {item.std:.3f}{unit}" if item.std is not None else ""
    return [name, gain, "; ".join([*(changes or ["best values unchanged"]), *([doubt] if doubt else [])]), item.summary]


def _goal(record: RunRecord, value: float | None, goal: str) -> str:
    """An objective's value as text; a loss is converted to the task's metric."""
    return record.words.show(value, words.QUALITY[0] if goal == record.words.metric.name else goal)


def importance(answer: Answer) -> list[list[str]]:
    """One row per choice with its share of each objective's variance, largest share first."""
    names = dict.fromkeys(name for shares in answer.importance.values() for name in shares)
    most = {name: max(shares.get(name, 0.0) for shares in answer.importance.values()) for name in names}
    ordered = sorted((name for name in names if most[name] >= 0.005), key=lambda name: -most[name])
    return [
        [name, *[units.show(shares.get(name, 0.0), "share", digits=2) for shares in answer.importance.values()]]
        for name in ordered
    ]


def elsewhere_row(record: RunRecord, device: Elsewhere) -> list[str]:
    """A table row: a device with its runtime, the contenders' expected costs there, and the trials on its front."""
    cells = []
    for trial in facts.contenders(record):
        shown = ", ".join(
            f"{record.words.short(metric)} {facts.promise_text(record, known, metric)}"
            for metric in ("ttft_p50", "tpot_p50", "peak_memory", *SPENDING)
            if (known := facts.there(device, trial.number, metric)) is not None
        )
        cells.append(shown or words.UNKNOWN)
    front = ", ".join(str(number) for number in device.front) or "none"
    where = device.title if device.runtime is None else f"{device.title}, {device.runtime}"
    return [where, *cells, front]


def elsewhere_head(record: RunRecord) -> tuple[str, ...]:
    """Column headers for :func:`elsewhere_row`."""
    return ("device", *[facts.name(record, trial) for trial in facts.contenders(record)], "its own front (trials)")


def explained(record: RunRecord) -> str:
    """The page's section on the knee, the cost of each limit, and the importance of choices."""
    answer = record.answer
    parts = [f"<p>{safe(text)}</p>" for text in (facts.bought(record), facts.foreseen(record), knee(record)) if text]
    if answer.relaxed:
        share = units.show(answer.relaxed[0].share, "share", digits=2)
        head = ("constraint", f"relaxing it by {share} gains", "best expected values", "example design")
        parts.append(text_table(head, [relaxed(record, item) for item in answer.relaxed]))
    if answer.importance:
        columns = ("choice", *[f"share of the variance of {record.words.label(name)}" for name in answer.importance])
        parts.append(text_table(columns, importance(answer), numbers=set(range(1, len(columns)))))
    caption = (
        "Predicted by the quality model of this run, not measured. Shares are total Sobol indices over the whole "
        "space; they add up to more than 100 % where choices interact."
    )
    return section("explained", "Why this answer", "".join(parts), caption if answer.importance else "")


def elsewhere(record: RunRecord) -> str:
    """The page's section on the run's other devices; empty if there are none."""
    if not record.elsewhere:
        return ""
    rows = [elsewhere_row(record, device) for device in record.elsewhere]
    titles = [safe(device.title) for device in record.elsewhere]
    carried = [
        [title, *[_carried(device, other.device) for other in record.elsewhere]]
        for title, device in zip(titles, record.elsewhere, strict=True)
    ]
    transfer = table(("front of the row, on the column", *titles), carried)
    caption = (
        f"{ELSEWHERE_NOTE} Second table: the hypervolume of the row's front on the column's device, divided by that of "
        "the column's own front. τ is the rank correlation of random candidates' costs on the two devices."
    )
    return section("elsewhere", "On other devices", text_table(elsewhere_head(record), rows) + transfer, caption)


def _carried(device: Elsewhere, other: str) -> str:
    share, rank = device.carried.get(other), device.ranks.get(other)
    if share is None or rank is None:
        return words.UNKNOWN
    return f"{units.show(share, 'share', digits=2)} <small>τ {rank:.2f}</small>"


def continued(record: RunRecord) -> list[tuple[str, ...]]:
    """Rows with the texts that winner and reference design write; the first row holds the column headers."""
    both = any(item.baseline is not None for item in record.continuations)
    rows = [("beginning of a test entry", "winner", "reference design")]
    rows += [(item.prompt, item.winner, item.baseline or "") for item in record.continuations]
    return [row if both else row[:2] for row in rows]


def continuations(record: RunRecord) -> str:
    """The page's section on what models write; empty if the run did not record it."""
    if not record.continuations:
        return ""
    head, *rows = continued(record)
    return section("writes", "What it writes", text_table(head, rows), safe(WRITES_NOTE), "prose")
