"""The roofline of an explanation."""

from __future__ import annotations

import math
from collections.abc import Sequence

from chipwise.core import units
from chipwise.core.page.figures import BOUND_COLOURS, Figure, Trace, axis, escape, figure, span
from chipwise.errors import Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.predict.explain.explanation import Operator, PhaseAnswer

FORMATS = ("fp8", "int8", "bf16", "fp16", "fp32")
_SYMBOLS = {"prefill": "circle", "decode": "diamond"}


def roofline_figure(sheet: DeviceProfile, phases: Sequence[PhaseAnswer]) -> Figure:
    """A figure with operators as points, and with memory levels and number formats as roofs."""
    drawn = [(phase, each) for phase in phases for each in phase.operators if each.intensity and each.seconds > 0]
    peaks = {name: rate for name in FORMATS if (rate := sheet.rate(name)) is not None}
    slopes = _slopes(sheet)
    ridges = [peak / rate for peak in peaks.values() for rate in slopes.values()]
    across = [each.intensity or 0.0 for _, each in drawn] + ridges
    x = axis([min(across) / 1.5, max(across) * 3], "count", "arithmetic intensity, FLOPs per byte moved", log=True)
    reached = [each.flops / each.seconds for _, each in drawn]
    y = axis([*reached, *peaks.values()], "compute", "reached FLOP/s (predicted)", log=True)
    left, right = span(x)
    top = max(peaks.values())
    traces = [_slope(name, rate, left, min(right, top / rate)) for name, rate in slopes.items()]
    traces += [_flat(name, peak, max(left, peak / max(slopes.values())), right) for name, peak in peaks.items()]
    for phase in phases:
        for bound in sorted({each.bound.value for other, each in drawn if other is phase}):
            group = [each for other, each in drawn if other is phase and each.bound.value == bound]
            traces.append(_points(phase, bound, group))
    notes = [
        _name(f"{name} {units.show(rate, 'bandwidth')}", left * 1.1, rate * left * 1.1) for name, rate in slopes.items()
    ]
    notes += [_name(f"{name} {units.show(peak, 'compute')}", right, peak, "right") for name, peak in peaks.items()]
    return figure(traces, height=520, xaxis=x, yaxis=y, annotations=notes)


def _slopes(sheet: DeviceProfile) -> dict[str, float]:
    found: dict[str, float] = {}
    for level in sheet.memory:
        if level.name not in ("registers", "host"):
            try:
                found[level.name] = sheet.bandwidth_bytes_per_s(level.name)
            except Unsupported:
                continue
    return found


def _slope(name: str, rate: float, start: float, end: float) -> Trace:
    return _line([start, end], [rate * start, rate * end], f"{name} {units.show(rate, 'bandwidth')}", "solid")


def _flat(name: str, peak: float, start: float, end: float) -> Trace:
    return _line([start, end], [peak, peak], f"{name} {units.show(peak, 'compute')}", "dash")


def _line(x: list[float], y: list[float], text: str, dash: str) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "line": {"color": "@muted", "width": 1.5, "dash": dash},
        "showlegend": False,
        "hovertext": [f"{escape(text)} (data sheet)"] * len(x),
        "hoverinfo": "text",
    }


def _name(text: str, x: float, y: float, anchor: str = "left") -> Trace:
    place = {"x": math.log10(x), "y": math.log10(y)}  # only here plotly expects the logarithm
    style = {
        "showarrow": False,
        "xanchor": anchor,
        "bgcolor": "@plot",
        "borderpad": 2,
        "font": {"size": 11, "color": "@muted"},
    }
    return {"text": escape(text), **place, **style}


def _points(phase: PhaseAnswer, bound: str, group: Sequence[Operator]) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"{phase.phase}, bound by {escape(bound)}",
        "x": [each.intensity for each in group],
        "y": [each.flops / each.seconds for each in group],
        "marker": {
            "symbol": _SYMBOLS[phase.phase],
            "color": BOUND_COLOURS.get(bound, "@grey"),
            "opacity": 0.85,
            "size": [7 + 22 * each.share**0.5 for each in group],
            "line": {"width": 1, "color": "@plot"},
        },
        "hovertext": [
            f"<b>{escape(each.place)}</b> · {escape(each.kind)}, {phase.phase}<br>"
            f"{units.number(each.intensity or 0)} FLOPs per byte, "
            f"{units.show(each.flops / each.seconds, 'compute')}<br>{units.show(each.seconds, 'time')}, "
            f"{units.show(each.share, 'share')} of the phase"
            for each in group
        ],
        "hoverinfo": "text",
    }
