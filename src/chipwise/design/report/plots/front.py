"""Draws the Pareto front: quality against serving cost, with the region within the limits and the main designs."""

from __future__ import annotations

from chipwise.core.page.figures import Figure, Trace, axis, escape, figure, scatter, span
from chipwise.design.limits import Constraint
from chipwise.design.report import facts, words
from chipwise.design.report.plots.common import Plot, View, detail, error_bars
from chipwise.design.report.record import RunRecord, Trial


def draw(record: RunRecord) -> Plot:
    """Plots quality (or expected loss) against latency, memory and parameters, each in a view of its own."""
    how = (
        _by_law(record)
        if facts.by_law(record)
        else "Filled points were measured on the target; open points were trained, and their cost is predicted (bars "
        "show the interval). Points of a lower rung of successive halving were trained for less time."
    )
    trained = [trial for trial in record.trials if facts.quality(record, trial).value is not None]
    first = facts.latency_metric(record)
    metrics = dict.fromkeys((first, "tpot_p50", "tpot_p99", "ttft_p50", "ttft_p99", "peak_memory", "parameters"))
    views = [
        View(label=record.words.short(metric), figure=_figure(record, metric, known))
        for metric in metrics
        if (known := [trial for trial in trained if facts.value(record, trial, metric).value is not None])
    ]
    return Plot(
        key="front",
        title="Quality against cost",
        caption=(
            f"Down and left is better. {how} Points in the shaded region meet the limit on this axis (a P99 limit is "
            "drawn for the P50 too); other limits may still exclude a point."
        ),
        views=tuple(views),
        empty="Neither latency nor memory of the trained candidates is known."
        if trained
        else "No candidate has been trained yet, so no quality is known.",
    )


def _by_law(record: RunRecord) -> str:
    """Caption that explains the points of a run without training."""
    if not any(trial.measured for trial in record.trials):
        return (
            "Nothing was trained or measured: the loss is what the law expects, and the cost is predicted (bars show "
            "the interval)."
        )
    return (
        "Nothing was trained: the loss is what the law expects. The cost of filled points was measured by a kit, "
        "that of open points is predicted (bars show the interval)."
    )


def _figure(record: RunRecord, metric: str, trials: list[Trial]) -> Figure:
    costs = [facts.value(record, trial, metric).value or 0.0 for trial in trials]
    qualities = [_shown(record, trial) or 0.0 for trial in trials]
    limits = _limits(record, metric)
    counted = "measured where filled, predicted where open"
    if metric == "parameters":
        counted = "counted"
    elif not any(trial.measured for trial in trials):
        counted = "predicted"
    x = axis(costs + [item.limit for item in limits], words.kind(metric), f"{record.words.label(metric)} ({counted})")
    by_law = facts.by_law(record)
    measure = record.words.metric
    loss = "loss, nats per token (expected)" if by_law else f"validation {measure.title} (trained)"
    y = axis(qualities, "count" if by_law else measure.unit, loss, log=False, pad=0.1)
    special = {record.winner, record.baseline, record.knee}
    plain = [trial for trial in trials if trial.number not in special]
    trained = "expected" if by_law else "trained"
    groups = [
        (f"{known}{'' if fits else breaks}", "@accent" if fits else "@grey", shape, fits, shape == "circle")
        for known, breaks, shape in (
            ("measured", ", breaks a limit", "circle"),
            (trained, ", predicted to break a limit", "circle-open"),
        )
        for fits in (True, False)
    ]
    traces = _region(record, metric, x, y) + _staircase(record, metric, x, trials)
    traces += [
        _points(record, metric, members, name=name, colour=colour, symbol=symbol)
        for name, colour, symbol, fits, measured in groups
        if (members := [t for t in plain if bool(t.measured) == measured and (t.feasible is not False) == fits])
    ]
    traces += _special(record, metric, trials)
    return figure(traces, height=500, xaxis=x, yaxis=y)


def _shown(record: RunRecord, trial: Trial) -> float | None:
    """The trial's quality in the unit of the axis."""
    loss = facts.quality(record, trial).value
    return loss if loss is None or facts.by_law(record) else record.words.metric.shown(loss)


def _limits(record: RunRecord, metric: str) -> list[Constraint]:
    """The limits to draw on a metric's axis. A limit on P99 is drawn for P50 too, because P50 is never larger."""
    names = {metric, metric.replace("_p50", "_p99")} if metric.endswith("_p50") else {metric}
    return [c for c in record.constraints if c.metric == metric or (c.metric in names and c.op == "<=")]


def _points(
    record: RunRecord, metric: str, trials: list[Trial], *, name: str, colour: str, symbol: str, size: float = 0
) -> Trace:
    known = [facts.value(record, trial, metric) for trial in trials]
    return scatter(
        "markers",
        name,
        [item.value for item in known],
        [_shown(record, trial) for trial in trials],
        hover=[detail(record, trial) for trial in trials],
        error_x=error_bars((item.value, item.low, item.high) for item in known),
        marker={
            "symbol": symbol,
            "color": colour,
            "size": size or [8 + 1.5 * min(trial.rung or 0, 4) for trial in trials],
            "opacity": 1,
            "line": {"width": 1.6, "color": colour if symbol.endswith("open") else "@plot"},
        },
    )


def _special(record: RunRecord, metric: str, trials: list[Trial]) -> list[Trace]:
    by_number = {trial.number: trial for trial in trials}
    traces = []
    if record.knee in by_number:
        trial = by_number[record.knee]
        alone = record.knee not in (record.winner, record.baseline)
        if alone:
            symbol = "circle" if trial.measured else "circle-open"
            traces.append(_points(record, metric, [trial], name="knee", colour="@knee", symbol=symbol, size=12))
        ring = _points(record, metric, [trial], name="knee", colour="@knee", symbol="circle-open", size=24)
        # the ring is only a marker, so it has no hover text
        del ring["hovertext"], ring["error_x"]
        traces.append({**ring, "hoverinfo": "skip", "showlegend": not alone})
    for role, symbol in (("baseline", "diamond"), ("winner", "star")):
        number = record.winner if role == "winner" else record.baseline
        if number in by_number and (role == "winner" or number != record.winner):
            trial = by_number[number]
            shape = symbol if trial.measured else f"{symbol}-open"
            size = 19 if role == "winner" else 14
            name = f"{words.role(role)}, trial {trial.number}"
            traces.append(_points(record, metric, [trial], name=name, colour=f"@{role}", symbol=shape, size=size))
    return traces


def _staircase(record: RunRecord, metric: str, x: dict[str, object], trials: list[Trial]) -> list[Trace]:
    front = [trial for trial in trials if trial.number in record.front]
    if not front or metric != facts.latency_metric(record):
        return []
    points = sorted((facts.value(record, trial, metric).value or 0.0, _shown(record, trial) or 0.0) for trial in front)
    across = [*(cost for cost, _ in points), span(x)[1]]
    up = [*(quality for _, quality in points), points[-1][1]]
    return [scatter("lines", "Pareto front", across, up, line={"shape": "hv", "color": "@front", "width": 2})]


def _region(record: RunRecord, metric: str, x: dict[str, object], y: dict[str, object]) -> list[Trace]:
    limits = _limits(record, metric)
    known = (record.words.metric.name, facts.LOSS)
    floors = [item for item in record.constraints if item.metric in known]
    if not limits and not floors:
        return []
    (left, right), (bottom, top) = span(x), span(y)
    right = min([right, *(item.limit for item in limits if item.op == "<=")])
    left = max([left, *(item.limit for item in limits if item.op == ">=")])
    top = min([top, *(item.limit for item in floors if item.op == "<=")])
    bottom = max([bottom, *(item.limit for item in floors if item.op == ">=")])
    if right <= left or top <= bottom:
        return []
    text = ", ".join(f"{record.words.short(item.metric)} {words.limit(item.text)}" for item in [*limits, *floors])
    return [
        scatter(
            "lines",
            f"feasible: {escape(text)}",
            [left, right, right, left, left],
            [bottom, bottom, top, top, bottom],
            fill="toself",
            fillcolor="@region",
            line={"color": "@feasible", "width": 1, "dash": "dot"},
        )
    ]
