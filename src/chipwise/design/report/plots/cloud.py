"""Candidates that were screened by their predicted cost alone."""

from __future__ import annotations

from chipwise.design.report import words
from chipwise.design.report.plots.common import Plot, Trace, View, axis, detail, figure, no_data, span
from chipwise.design.report.record import RunRecord


def draw(record: RunRecord) -> Plot:
    """Predicted memory against predicted time per token of a sample of the screened candidates."""
    plot = Plot(
        key="cloud",
        title="Screened by cost alone",
        caption=(
            "A sample of the candidates that were priced and not trained; both axes are predicted. "
            "Green ones are predicted to meet every constraint. Larger points were tried."
        ),
    )
    if not record.cloud.feasible:
        return no_data(plot, "No sample of the screened candidates was kept.")
    return Plot(
        key=plot.key, title=plot.title, caption=plot.caption, views=(View(label="cloud", figure=_figure(record)),)
    )


def _figure(record: RunRecord) -> dict[str, object]:
    cloud = record.cloud
    tried = [trial for trial in record.trials if "tpot_p50" in trial.predicted and "peak_memory" in trial.predicted]
    tried_x = [trial.predicted["tpot_p50"].value for trial in tried]
    tried_y = [trial.predicted["peak_memory"].value for trial in tried]
    limits = {item.metric: item.limit for item in record.constraints if item.op == "<="}
    x = axis([*cloud.tpot_p50_s, *tried_x], "time", f"{record.words.label('tpot_p50')} (predicted)")
    y = axis([*cloud.peak_memory_bytes, *tried_y], "bytes", f"{record.words.label('peak_memory')} (predicted)")
    traces = [_sample(record, fits) for fits in (False, True)]
    if tried:
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "tried",
                "x": tried_x,
                "y": tried_y,
                "marker": {
                    "opacity": 1,
                    "size": [14 if trial.number in (record.winner, record.baseline) else 9 for trial in tried],
                    "symbol": [_symbol(record, trial.number) for trial in tried],
                    "color": [
                        f"@{role}" if (role := record.role(trial)) != "candidate" else "@accent" for trial in tried
                    ],
                    "line": {"width": 1, "color": "@plot"},
                },
                "hovertext": [detail(record, trial) for trial in tried],
                "hoverinfo": "text",
            }
        )
    for metric, (start, end) in (("tpot_p50", span(y)), ("peak_memory", span(x))):
        if metric in limits:
            along, level = [start, end], [limits[metric]] * 2
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": f"limit: {record.words.short(metric)} {record.words.show(limits[metric], metric)}",
                    "x": level if metric == "tpot_p50" else along,
                    "y": along if metric == "tpot_p50" else level,
                    "line": {"color": "@bad", "width": 1.5, "dash": "dot"},
                    "hoverinfo": "skip",
                }
            )
    return figure(traces, height=460, xaxis=x, yaxis=y)


def _sample(record: RunRecord, fits: bool) -> Trace:
    cloud = record.cloud
    rows = [i for i, feasible in enumerate(cloud.feasible) if feasible is fits]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "predicted to meet every constraint" if fits else "predicted to break one",
        "x": [cloud.tpot_p50_s[i] for i in rows],
        "y": [cloud.peak_memory_bytes[i] for i in rows],
        "marker": {"size": 5, "opacity": 0.55, "color": "@feasible" if fits else "@grey"},
        "hovertext": [
            f"screened, not tried<br>TPOT P50 {record.words.show(cloud.tpot_p50_s[i], 'tpot_p50')} predicted<br>"
            f"memory {record.words.show(cloud.peak_memory_bytes[i], 'peak_memory')} predicted<br>"
            f"{words.count(cloud.parameters[i])} parameters"
            for i in rows
        ],
        "hoverinfo": "text",
    }


def _symbol(record: RunRecord, number: int) -> str:
    return "star" if number == record.winner else "diamond" if number == record.baseline else "circle"
