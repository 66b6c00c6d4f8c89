"""Draws the winner's confusion matrix for each task: rows are true classes, columns are predicted classes."""

from __future__ import annotations

from chipwise.core.page.figures import Figure, escape, figure
from chipwise.design.report import facts, words
from chipwise.design.report.plots.common import Plot, View
from chipwise.design.report.record import RunRecord, TaskScore

_LONGEST = 34  # most characters of a class name beside the figure; hovering shows the whole name


def draw(record: RunRecord) -> Plot:
    """A heat map for each task with classes, for the winner or, if it was not evaluated, the best contender."""
    views = []
    for task in record.tasks:
        evaluated = [trial for trial in record.trials if task.name in trial.tasks and trial.tasks[task.name].confusion]
        trial = next((one for one in evaluated if one.number == record.winner), None)
        trial = trial or max(evaluated, key=lambda one: one.tasks[task.name].value or 0.0, default=None)
        if trial is not None and task.classes:
            name = f"{task.name}: {facts.name(record, trial)}"
            views.append(View(label=name, figure=_figure(task.classes, trial.tasks[task.name])))
    return Plot(
        key="confusion",
        title="Confusion matrix",
        caption=(
            "Held-out items by their true class (down) and the answer (across). The colour shows the share of the "
            "items of the true class that got this answer; numbers count the items."
        ),
        views=tuple(views),
        empty="The run has no task with classes, or no contender was evaluated yet.",
    )


def _figure(classes: tuple[str, ...], score: TaskScore) -> Figure:
    rows = score.confusion
    totals = [sum(row) for row in rows]
    names = [escape(_short(name)) for name in classes]
    size = len(classes)
    cell = max(14, min(30, 700 // max(size, 1)))
    hover = [
        [
            f"<b>{escape(true)}</b><br>answered {escape(answer)}<br>{count} of {total}"
            for answer, count in zip(classes, row, strict=True)
        ]
        for true, row, total in zip(classes, rows, totals, strict=True)
    ]
    return figure(
        [
            {
                "type": "heatmap",
                "z": [
                    [count / total if total else None for count in row] for row, total in zip(rows, totals, strict=True)
                ],
                "text": [[str(count) if count else "" for count in row] for row in rows],
                "texttemplate": "%{text}",
                "textfont": {"size": 10},
                "hovertext": hover,
                "hoverinfo": "text",
                "colorscale": [[0, "@plot"], [1, "@winner"]],
                "zmin": 0,
                "zmax": 1,
                "showscale": False,
                "showlegend": False,
                "xgap": 1,
                "ygap": 1,
            }
        ],
        height=max(300, 190 + cell * size),
        xaxis=_names(names, "answered"),
        yaxis=_names(
            [f"{name} ({words.count(total)})" for name, total in zip(names, totals, strict=True)], "true class"
        )
        | {"autorange": "reversed"},
    )


def _names(names: list[str], title: str) -> dict[str, object]:
    return {
        "title": {"text": title, "standoff": 8},
        "tickvals": list(range(len(names))),
        "ticktext": names,
        "tickfont": {"size": 10},
        "automargin": True,
        "showgrid": False,
        "zeroline": False,
        "linecolor": "@line",
        **({"tickangle": -60} if title == "answered" else {}),
    }


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
