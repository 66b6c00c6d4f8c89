"""The search's history: the best result over CPU seconds spent."""

from __future__ import annotations

from chipwise.core.page.figures import Figure, axis, figure, scatter
from chipwise.design.report import words
from chipwise.design.report.plots.common import Plot, View, detail
from chipwise.design.report.record import HistoryPoint, RunRecord


def draw(record: RunRecord) -> Plot:
    """Best bits per byte, and hypervolume, over CPU seconds."""
    metric = record.words.metric
    better = "highest" if metric.more_is_better else "lowest"
    views = [
        View(label=label, figure=_figure(record, points, field, title, colour))
        for label, field, title, colour in (
            (metric.title, "best_loss", f"{better} {metric.title} so far (trained)", "@winner"),
            ("hypervolume", "hypervolume", "hypervolume of the front", "@accent"),
        )
        if (points := [point for point in record.history if getattr(point, field) is not None])
    ]
    return Plot(
        key="history",
        title="History of the search",
        caption=f"A point per trial that ended. The best {metric.title} counts candidates that meet the constraints.",
        views=tuple(views),
        empty="No trial with a known quality has ended yet.",
    )


def _shown(record: RunRecord, value: float, field: str) -> float:
    return value if field == "hypervolume" else record.words.metric.shown(value)


def _figure(record: RunRecord, points: list[HistoryPoint], field: str, title: str, colour: str) -> Figure:
    across = [point.elapsed_cpu_s for point in points]
    up = [_shown(record, getattr(point, field), field) for point in points]
    trace = scatter(
        "lines+markers",
        title,
        across,
        up,
        hover=[_hover(record, point, field, title) for point in points],
        showlegend=False,
        line={"shape": "hv", "color": colour, "width": 2},
        marker={"size": 6},
    )
    x = axis(across, "time", "CPU time spent by the whole search", zero=True)
    return figure([trace], height=360, xaxis=x, yaxis=axis(up, "count", title, log=False, pad=0.1))


def _hover(record: RunRecord, point: HistoryPoint, field: str, title: str) -> str:
    lines = [
        f"<b>{title} {getattr(point, field):.4g}</b>",
        f"after {words.quantity(point.elapsed_cpu_s, 'time')} of CPU time",
    ]
    trial = record.trial(point.trial)
    if trial is not None:
        lines += ["", detail(record, trial)]
    return "<br>".join(lines)
