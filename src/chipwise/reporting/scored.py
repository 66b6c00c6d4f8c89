"""What contenders reached on tasks, and how well early judgements ranked candidates: rows for page and card."""

from __future__ import annotations

from typing import Final

from chipwise.page.markup import empty, safe, section, table
from chipwise.reporting import facts, words
from chipwise.reporting.record import RunRecord
from chipwise.reporting.scores import Agreement, Ranking, TaskScore

TASK_HEAD: Final = ("task", "contender", "reached", "95 % interval", "learnt from", "held out", "what answered")
TASK_NOTE: Final = (
    "Held-out items, chosen by a hash of their text, were answered once. A floor counts by the value; the interval "
    "says how far another sample of as many items may lie. Nobody predicted these numbers."
)
RANKING_HEAD: Final = ("judged by", "τ, all pairs", "pairs", "τ, equal latency", "pairs")
RANKING_NOTE: Final = (
    "Kendall's τ between an early judgement and the bits per byte that longer training found: 1 is the same order, 0 "
    "chance. Brackets: 95 % of resamplings of the candidates. Equal latency: pairs whose predicted time per token lies "
    "within 5 % of one value. More parameters and FLOPs count as better. The longer trainings were given to candidates "
    "that looked good, which makes them harder to rank than candidates at large. Law and quality model speak of a full "
    "training, whatever length a table is of."
)


def task_rows(record: RunRecord) -> list[list[str]]:
    """For each task: the winner, the baseline, others that were asked, and the bag of words."""
    rows = []
    for task in record.tasks:
        asked = [trial for trial in record.trials if task.name in trial.tasks]
        order = {"winner": 0, "baseline": 1, "candidate": 2, "original": 3}
        asked.sort(key=lambda trial: (order[record.role(trial)], trial.number))
        rows += [[task.name, facts.name(record, trial), *_score(trial.tasks[task.name])] for trial in asked]
        if task.bar is not None:
            rows.append([task.name, task.bar.method or "TF-IDF and a linear model", *_score(task.bar)])
        if not asked:
            rows.append([task.name, "nobody yet", *[words.UNKNOWN] * 5])
    return rows


def _score(score: TaskScore) -> list[str]:
    if score.value is None:
        return [words.UNKNOWN, "", "", "", score.failed or ""]
    metric = f"{score.metric}@"
    interval = f"{words.show(score.low, metric)} to {words.show(score.high, metric)}"
    name = "" if score.metric == "accuracy" else f" ({score.metric})"
    counts = [words.count(score.train_items), words.count(score.test_items)]
    how = f"{score.judged}, {score.method}d" if score.judged and score.method == "tune" else score.judged
    return [words.show(score.value, metric) + name, interval, *counts, how]


def tasks(record: RunRecord) -> str:
    """The page's section on tasks; nothing where the run has none."""
    if not record.tasks:
        return ""
    rows = [[safe(cell) for cell in row] for row in task_rows(record)]
    return section("tasks", "Tasks", table(TASK_HEAD, rows, numbers={2, 3, 4, 5}), safe(TASK_NOTE))


def ranking_title(ranking: Ranking) -> str:
    """Which trainings are the truth of a table."""
    return f"{ranking.candidates} candidates as they were after {words.quantity(ranking.cpu_s, 'time')} of training"


def ranking_rows(ranking: Ranking) -> list[list[str]]:
    """A row for each judgement."""
    return [
        [
            item.name,
            _tau(item.overall),
            str(item.overall.pairs),
            _tau(item.equal_latency),
            str(item.equal_latency.pairs),
        ]
        for item in ranking.fidelities
    ]


def _tau(found: Agreement) -> str:
    if found.tau is None or found.low is None or found.high is None:
        return "too few to tell"
    return f"{found.tau:.2f} [{found.low:.2f}, {found.high:.2f}]"


def rankings(record: RunRecord) -> str:
    """The page's section on rankings; it says so where too few candidates were trained."""
    if not record.rankings:
        return ""
    parts = []
    for ranking in record.rankings:
        rows = [[safe(cell) for cell in row] for row in ranking_rows(ranking)]
        parts.append(f"<h3>{safe(ranking_title(ranking))}</h3>")
        parts.append(table(RANKING_HEAD, rows, numbers={1, 2, 3, 4}) if rows else empty("Too few to tell."))
    return section("rankings", "How well candidates were ranked early", "".join(parts), safe(RANKING_NOTE))
