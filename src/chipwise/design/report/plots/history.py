"""The search's history: the best so far over CPU seconds spent."""

from __future__ import annotations

from chipwise.design.report import words
from chipwise.design.report.plots.common import Plot, Trace, View, axis, detail, figure, no_data
from chipwise.design.report.record import HistoryPoint, RunRecord


def draw(record: RunRecord) -> Plot:
    """Best bits per byte, and hypervolume, over CPU seconds."""
    metric = record.words.metric
    plot = Plot(
        key="history",
        title="History of the search",
        caption=f"A point per trial that ended. The best {metric.title} counts candidates that meet the constraints.",
    )
    best = [point for point in record.history if point.best_loss is not None]
    volume = [point for point in record.history if point.hypervolume is not None]
    views = []
    if best:
        better = "highest" if metric.more_is_better else "lowest"
        title = f"{better} {metric.title} so far (trained)"
        figure = _figure(record, best, "best_loss", title, "@winner")
        views.append(View(label=metric.title, figure=figure))
    if volume:
        figure = _figure(record, volume, "hypervolume", "hypervolume of the front", "@accent")
        views.append(View(label="hypervolume", figure=figure))
    if not views:
        return no_data(plot, "No trial with a known quality has ended yet.")
    return Plot(key=plot.key, title=plot.title, caption=plot.caption, views=tuple(views))


def _shown(record: RunRecord, value: float, field: str) -> float:
    return value if field == "hypervolume" else record.words.metric.shown(value)


def _figure(record: RunRecord, points: list[HistoryPoint], field: str, title: str, colour: str) -> dict[str, object]:
    trace: Trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": title,
        "showlegend": False,
        "x": [point.elapsed_cpu_s for point in points],
        "y": [_shown(record, getattr(point, field), field) for point in points],
        "line": {"shape": "hv", "color": colour, "width": 2},
        "marker": {"size": 6},
        "hovertext": [_hover(record, point, field, title) for point in points],
        "hoverinfo": "text",
    }
    x = axis(trace["x"], "time", "CPU time spent by the whole search", zero=True)
    y = axis(trace["y"], "count", title, log=False, pad=0.1)
    return figure([trace], height=360, xaxis=x, yaxis=y)


def _hover(record: RunRecord, point: HistoryPoint, field: str, title: str) -> str:
    lines = [
        f"<b>{title} {getattr(point, field):.4g}</b>",
        f"after {words.quantity(point.elapsed_cpu_s, 'time')} of CPU time",
    ]
    trial = record.trial(point.trial)
    if trial is not None:
        lines += ["", detail(record, trial)]
    return "<br>".join(lines)
