"""Plot of the candidates that were screened by predicted cost only."""

from __future__ import annotations

from chipwise.core.page.figures import Figure, Trace, axis, figure, scatter, span
from chipwise.design.report import words
from chipwise.design.report.plots.common import Plot, View, colour, detail, symbol
from chipwise.design.report.record import RunRecord


def draw(record: RunRecord) -> Plot:
    """Predicted memory against predicted time per token of a sample of the screened candidates."""
    return Plot(
        key="cloud",
        title="Screened by cost only",
        caption=(
            "A sample of the candidates that were priced and not trained; both axes are predicted. "
            "Green ones are predicted to meet every constraint. Larger points were tried."
        ),
        views=(View(label="cloud", figure=_figure(record)),) if record.cloud.feasible else (),
        empty="No sample of the screened candidates was stored.",
    )


def _figure(record: RunRecord) -> Figure:
    cloud = record.cloud
    tried = [trial for trial in record.trials if "tpot_p50" in trial.predicted and "peak_memory" in trial.predicted]
    tried_x = [trial.predicted["tpot_p50"].value for trial in tried]
    tried_y = [trial.predicted["peak_memory"].value for trial in tried]
    limits = {item.metric: item.limit for item in record.constraints if item.op == "<="}
    x = axis([*cloud.tpot_p50_s, *tried_x], "time", f"{record.words.label('tpot_p50')} (predicted)")
    y = axis([*cloud.peak_memory_bytes, *tried_y], "bytes", f"{record.words.label('peak_memory')} (predicted)")
    traces = [_sample(record, fits) for fits in (False, True)]
    if tried:
        marker = {
            "opacity": 1,
            "size": [14 if trial.number in (record.winner, record.baseline) else 9 for trial in tried],
            "symbol": [symbol(record, trial.number) for trial in tried],
            "color": [colour(record, trial) for trial in tried],
            "line": {"width": 1, "color": "@plot"},
        }
        hover = [detail(record, trial) for trial in tried]
        traces.append(scatter("markers", "tried", tried_x, tried_y, hover=hover, marker=marker))
    for metric, (start, end) in (("tpot_p50", span(y)), ("peak_memory", span(x))):
        if metric in limits:
            ends = [start, end], [limits[metric]] * 2
            across, up = ends[::-1] if metric == "tpot_p50" else ends
            name = f"limit: {record.words.short(metric)} {record.words.show(limits[metric], metric)}"
            traces.append(scatter("lines", name, across, up, line={"color": "@bad", "width": 1.5, "dash": "dot"}))
    return figure(traces, height=460, xaxis=x, yaxis=y)


def _sample(record: RunRecord, fits: bool) -> Trace:
    cloud = record.cloud
    rows = [i for i, feasible in enumerate(cloud.feasible) if feasible is fits]
    hover = [
        f"screened, not tried<br>TPOT P50 {record.words.show(cloud.tpot_p50_s[i], 'tpot_p50')} predicted<br>"
        f"memory {record.words.show(cloud.peak_memory_bytes[i], 'peak_memory')} predicted<br>"
        f"{words.count(cloud.parameters[i])} parameters"
        for i in rows
    ]
    return scatter(
        "markers",
        "predicted to meet every constraint" if fits else "predicted to break one",
        [cloud.tpot_p50_s[i] for i in rows],
        [cloud.peak_memory_bytes[i] for i in rows],
        hover=hover,
        marker={"size": 5, "opacity": 0.55, "color": "@feasible" if fits else "@grey"},
    )
