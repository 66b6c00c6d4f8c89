"""The roofline: speeds of the winner's operators and the machine's limits."""

from __future__ import annotations

import math

from chipwise.core import units
from chipwise.design.report import words
from chipwise.design.report.plots.common import BOUND_COLOURS, Plot, Trace, View, axis, escape, figure, no_data, span
from chipwise.design.report.record import Operator, RunRecord

_SYMBOLS = {"prefill": "circle", "decode": "diamond"}


def draw(record: RunRecord) -> Plot:
    """Attainable and reached FLOP/s over arithmetic intensity."""
    roofs = (
        "Lines are what the calibrated machine offers: slopes are memory levels, flat lines the peak of each format. "
        if record.roofs
        else ""
    )
    plot = Plot(
        key="roofline",
        title="Roofline of the winner",
        caption=(
            f"{roofs}Each point is an operator at its predicted speed; a larger point takes more of its phase's time. "
            "Points far below the others spend their time on the overhead of launching."
        ),
    )
    drawn = {
        phase: members
        for phase, ops in record.operators.items()
        if (members := [op for op in ops if op.flops > 0 and op.bytes > 0 and op.predicted_s > 0])
    }
    if not drawn:
        reason = "There is no winner yet, so there are no operators to show."
        return no_data(plot, reason if record.winner is None else "The winner's operators were not recorded.")
    views = [View(label="both phases", figure=_figure(record, drawn))]
    if len(drawn) > 1:
        views += [View(label=phase, figure=_figure(record, {phase: ops})) for phase, ops in drawn.items()]
    return Plot(key=plot.key, title=plot.title, caption=plot.caption, views=tuple(views))


def _figure(record: RunRecord, phases: dict[str, list[Operator]]) -> dict[str, object]:
    ops = [op for members in phases.values() for op in members]
    peak = max((item.flops_per_s for item in record.peaks), default=0.0)
    intensities = [op.flops / op.bytes for op in ops]
    ridges = [item.flops_per_s / roof.bandwidth_bytes_per_s for item in record.peaks for roof in record.roofs]
    across = [*intensities, *ridges]
    room = [min(across) / 1.5, max(across) * 3]  # for the names of the roofs
    x = axis(room, "count", "arithmetic intensity, FLOPs per byte moved", log=True)
    reached = [op.flops / op.predicted_s for op in ops]
    tops = [peak] if peak else []
    y = axis([*reached, *tops], "compute", "reached FLOP/s (predicted)", log=True)
    traces, names = _roofs(record, span(x), peak)
    for phase, members in phases.items():
        total_s = sum(op.predicted_s for op in record.operators[phase])
        for bound in sorted({op.bound.lower() for op in members}):
            group = [op for op in members if op.bound.lower() == bound]
            traces.append(_points(phase, bound, group, total_s))
    return figure(traces, height=500, xaxis=x, yaxis=y, annotations=names)


def _roofs(record: RunRecord, shown: tuple[float, float], peak: float) -> tuple[list[Trace], list[dict[str, object]]]:
    """The lines, with their names as labels on them."""
    left, right = shown
    traces, names = [], []
    for i, roof in enumerate(sorted(record.roofs, key=lambda roof: roof.bandwidth_bytes_per_s)):
        rate = roof.bandwidth_bytes_per_s
        end = min(right, peak / rate) if peak else right
        along = 0.22 + 0.16 * (i % 3)  # labels side by side, not over each other
        middle = left ** (1 - along) * end**along
        text = f"{escape(roof.name)} {units.show(rate, 'bandwidth')}"
        traces.append(_line([left, middle, end], rate, text, "solid"))
        names.append(_name(text, middle, middle * rate, "center"))
    fastest = max((roof.bandwidth_bytes_per_s for roof in record.roofs), default=0.0)
    for item in record.peaks:
        start = max(left, item.flops_per_s / fastest) if fastest else left
        text = f"{escape(item.dtype)} {units.show(item.flops_per_s, 'compute')}"
        traces.append(_line([start, right], item.flops_per_s, text, "dash"))
        names.append(_name(text, right, item.flops_per_s, "right"))
    return traces, names


def _line(x: list[float], rate: float, text: str, dash: str) -> Trace:
    """A slope of ``rate`` (solid) or a flat line at it (dashed)."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": [rate * value for value in x] if dash == "solid" else [rate] * len(x),
        "line": {"color": "@muted", "width": 1.5, "dash": dash},
        "showlegend": False,
        "hovertext": [f"{text} (measured by calibration)"] * len(x),
        "hoverinfo": "text",
    }


def _name(text: str, x: float, y: float, anchor: str) -> dict[str, object]:
    return {
        "text": text,
        "x": math.log10(x),  # only here plotly expects the logarithm
        "y": math.log10(y),
        "xanchor": anchor,
        "showarrow": False,
        "bgcolor": "@plot",
        "borderpad": 2,
        "font": {"size": 11, "color": "@muted"},
    }


def _points(phase: str, bound: str, ops: list[Operator], total_s: float) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"{escape(phase)}, bound by {escape(bound)}",
        "x": [op.flops / op.bytes for op in ops],
        "y": [op.flops / op.predicted_s for op in ops],
        "marker": {
            "symbol": _SYMBOLS.get(phase, "square"),
            "color": BOUND_COLOURS.get(bound, "@grey"),
            "opacity": 0.85,
            "size": [7 + 22 * (op.predicted_s / total_s) ** 0.5 for op in ops],
            "line": {"width": 1, "color": "@plot"},
        },
        "hovertext": [operator_text(phase, op, total_s) for op in ops],
        "hoverinfo": "text",
    }


def operator_text(phase: str, op: Operator, total_s: float) -> str:
    """An operator in full, as lines of a hover text."""
    intensity = f"{op.flops / op.bytes:.3g} FLOPs per byte" if op.bytes else "moves no bytes"
    lines = [
        f"<b>{escape(op.place)}</b> · {escape(op.kind)}, {escape(phase)}",
        f"{units.show(op.flops, 'count')} FLOPs, {units.show(op.bytes, 'bytes')} · {intensity}",
        f"predicted {words.quantity(op.predicted_s, 'time')} "
        f"({units.show(op.predicted_s / total_s, 'share')} of the phase)",
        f"bound by {escape(op.bound.lower())}",
        f"measured {words.quantity(op.measured_s, 'time')}" if op.measured_s is not None else words.NOT_MEASURED,
    ]
    if op.flops:
        lines.insert(3, f"reaches {units.show(op.flops / op.predicted_s, 'compute')}")
    return "<br>".join(lines)
