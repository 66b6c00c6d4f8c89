"""Draws measured against predicted values: a parity plot with intervals and a 25 % band."""

from __future__ import annotations

from chipwise.core.page.figures import Figure, Trace, axis, figure, scatter, span
from chipwise.design.report import words
from chipwise.design.report.plots.common import Plot, View, detail, error_bars, symbol
from chipwise.design.report.record import Promise, RunRecord

BAND = 0.25  # half width of the band: the deviation of a measurement as a share of its prediction
_COLOURS = {"ttft_p50": "@compute", "ttft_p99": "@compute", "tpot_p50": "@accent", "tpot_p99": "@accent"}


def draw(record: RunRecord) -> Plot:
    """Plots every prediction that has a measurement, with one view for each kind of unit."""
    known = [item for item in record.promised_measured if item.measured is not None]
    views = [
        View(label=label, figure=_figure(record, members, kind))
        for kind, label in (("time", "latency"), ("bytes", "memory"), ("count", "other"))
        if (members := [item for item in known if words.kind(item.metric) == kind])
    ]
    return Plot(
        key="promised",
        title="Promised against measured",
        caption=(
            "Horizontal: predicted before measuring, with its interval. Vertical: measured on the target. On the line, "
            f"both are equal; the band is ±{BAND * 100:.0f} % of the prediction. Star: winner; diamond: reference."
        ),
        views=tuple(views),
        empty="Nothing was measured yet, so no promise could be checked.",
    )


def _figure(record: RunRecord, items: list[Promise], kind: str) -> Figure:
    values = [v for item in items for v in (item.promised, item.measured, item.low, item.high) if v]
    x = axis(values, kind, "promised (predicted)")
    y = axis(values, kind, "measured")
    low, high = span(x)
    low = max(low, min(values) / 1e3)
    band = [low * (1 - BAND), high * (1 - BAND), high * (1 + BAND), low * (1 + BAND), low * (1 - BAND)]
    filled: Trace = {"fill": "toself", "fillcolor": "@region", "line": {"width": 0}}
    traces = [
        scatter("lines", f"within {BAND * 100:.0f} %", [low, high, high, low, low], band, **filled),
        scatter("lines", "exact", [low, high], [low, high], line={"color": "@muted", "width": 1, "dash": "dash"}),
    ]
    metrics = sorted({item.metric for item in items})
    traces += [_points(record, metric, [item for item in items if item.metric == metric]) for metric in metrics]
    return figure(traces, height=470, xaxis=x, yaxis=y)


def _points(record: RunRecord, metric: str, items: list[Promise]) -> Trace:
    items = sorted(items, key=lambda item: item.trial in (record.winner, record.baseline))  # the legend shows the first
    shape = "circle-open" if metric.endswith("_p99") else "circle"
    colour = _COLOURS.get(metric, "@accent")
    return scatter(
        "markers",
        record.words.short(metric),
        [item.promised for item in items],
        [item.measured for item in items],
        hover=[_hover(record, item) for item in items],
        error_x=error_bars((item.promised, item.low, item.high) for item in items),
        marker={
            "symbol": [symbol(record, item.trial, shape) for item in items],
            "color": colour,
            "opacity": 1,
            "size": [13 if item.trial in (record.winner, record.baseline) else 9 for item in items],
            "line": {"width": 1.5, "color": colour if shape.endswith("open") else "@plot"},
        },
    )


def _hover(record: RunRecord, item: Promise) -> str:
    trial = record.trial(item.trial)
    promise = record.words.span(item.promised, item.low, item.high, item.metric)
    off = words.signed(item.measured or 0.0, item.promised)
    lines = [
        f"<b>{record.words.label(item.metric)}</b>",
        f"promised {promise}",
        f"measured {record.words.show(item.measured, item.metric)} ({off})",
    ]
    return "<br>".join([*lines, "", detail(record, trial)] if trial else lines)
