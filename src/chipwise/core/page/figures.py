"""Figures with axes in readable units and named colours.

Figures are plain dictionaries in plotly's schema, so plotly is not imported. Colours are names such as
``@winner``, which the page replaces with the colour of its light or dark theme.
"""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, Final

from chipwise.core import units

Figure = dict[str, Any]
TITLE: Final = 38  # characters per line of an axis title
Trace = Figure
_FONT: Final = "system-ui, -apple-system, 'Segoe UI', sans-serif"
_CLOCK: Final = (10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 18_000, 36_000, 86_400, 172_800)  # seconds
_FINE_CLOCK: Final = (15, 40, 50, 90, 180, 240, 420, 480, 900, 2400, 5400, 10_800, 14_400, 28_800, 57_600)
BOUND_COLOURS: Final = {"compute": "@compute", "memory": "@memory", "launch": "@launch"}


def escape(text: object) -> str:
    """Escapes text from a file, so that it is safe in the page and in plotly's labels (which accept some HTML)."""
    return html.escape(str(text), quote=False)


def figure(traces: list[Trace], *, height: int = 430, legend_y: float = -0.22, **layout: object) -> Figure:
    """A figure in the page's style.

    Args:
        traces: Plotly traces.
        height: Height in pixels.
        legend_y: Position of the legend's top as a fraction of the plot's height. Negative values are below the plot;
            the default is also below the tick labels and the axis title.
        layout: Additional entries of plotly's layout.
    """
    margin = {"l": 88, "r": 44, "t": 18, "b": 58}
    base: Figure = {
        "height": height,
        "margin": margin,
        "paper_bgcolor": "@plot",
        "plot_bgcolor": "@plot",
        "font": {"family": _FONT, "size": 13, "color": "@ink"},
        "hovermode": "closest",
        "hoverlabel": {
            "align": "left",
            "bgcolor": "@card",
            "bordercolor": "@line",
            "font": {"family": _FONT, "color": "@ink", "size": 12},
        },
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": legend_y,
            "xanchor": "left",
            "yanchor": "top",
            "font": {"size": 12},
            "traceorder": "normal",
        },
        "modebar": {"orientation": "v", "bgcolor": "@plot", "color": "@grey", "activecolor": "@accent"},
    }
    return {"data": traces, "layout": {**base, **layout}}


def scatter(
    mode: str, name: str, x: Sequence[object], y: Sequence[object], *, hover: list[str] | None = None, **more: object
) -> Trace:
    """A trace of points or lines. Without ``hover`` texts, it does not react to the mouse."""
    shown: Trace = {"hoverinfo": "skip"} if hover is None else {"hovertext": hover, "hoverinfo": "text"}
    return {"type": "scatter", "mode": mode, "name": name, "x": x, "y": y, **shown, **more}


def axis(
    values: Iterable[float],
    unit_kind: str,
    title: str,
    *,
    log: bool | None = None,
    pad: float = 0.06,
    zero: bool = False,
) -> Figure:
    """An axis that covers ``values``, with ticks in a readable unit; logarithmic if the values span a wide range."""
    known = [value for value in values if math.isfinite(value)]
    low, high = min(known), max(known)
    if log is None:
        log = not zero and low > 0 and high / low > 5
    axis: Figure = {
        "title": {"text": "<br>".join(textwrap.wrap(title, TITLE)), "standoff": 12},
        "gridcolor": "@grid",
        "linecolor": "@line",
        "zeroline": False,
        "ticks": "outside",
        "tickcolor": "@line",
        "ticklen": 4,
        "automargin": True,
    }
    if log:
        room = max((math.log10(high) - math.log10(low)) * pad, 0.02)
        start, end = math.log10(low) - room, math.log10(high) + room
        ticks = log_ticks(10**start, 10**end, unit_kind)
        axis |= {"type": "log", "range": [start, end]}
    else:
        room = (high - low) * pad or abs(high) * 0.1 or 1.0
        start, end = (0.0, high * (1 + pad) or 1.0) if zero else (low - room, high + room)
        ticks = linear_ticks(start, end, unit_kind)
        axis |= {"type": "linear", "range": [start, end]}
    return axis | {"tickvals": ticks, "ticktext": tick_texts(ticks, unit_kind)}


def span(axis: Figure) -> tuple[float, float]:
    """The first and the last value on the axis."""
    start, end = axis["range"]
    return (10**start, 10**end) if axis["type"] == "log" else (start, end)


def log_ticks(low: float, high: float, unit_kind: str = "count", *, most: int = 9) -> list[float]:
    """At most ``most`` ticks from ``low`` to ``high``, at round multiples of powers of ten.

    A decade has 1 to 10 ticks, such as 1, 2 and 5. Long times have ticks at round numbers of minutes, hours or days.
    """
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    levels = [
        [step * 10.0**e for e in exponents for step in steps]
        for steps in ((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), (1, 1.5, 2, 3, 4, 6, 8), (1, 2, 5), (1, 3), (1,))
    ]
    if unit_kind == "time" and high > 60:  # ticks such as 1.667 minutes are hard to read
        levels = [[tick for tick in ticks if tick < 10] + list(_CLOCK) for ticks in levels[2:]] + levels
        levels = [sorted({*levels[0], *_FINE_CLOCK}), *levels]
    shown = [[tick for tick in ticks if low <= tick <= high] for ticks in levels]
    found = next((ticks for ticks in shown if 2 <= len(ticks) <= most), shown[-1] or shown[0])
    return found[:: max(1, -(-len(found) // most))]


def linear_ticks(low: float, high: float, unit_kind: str = "count", *, most: int = 8) -> list[float]:
    """Ticks at multiples of 1, 2 or 5 times a power of ten; long times have ticks at whole minutes or hours."""
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(step * power for step in (1, 2, 5, 10) if step * power >= raw * 0.9999)
    if unit_kind == "time" and raw > 5:
        step = next((tick for tick in _CLOCK if tick >= raw), step)
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def tick_texts(ticks: Sequence[float], unit_kind: str) -> list[str]:
    """Tick labels with just enough digits to be distinct."""
    texts: list[str] = []
    for digits in range(4, 12):
        texts = [tick_text(tick, unit_kind, digits=digits) for tick in ticks]
        if len(set(texts)) == len(texts):
            break
    return texts


def tick_text(value: float, unit_kind: str, *, digits: int = 4) -> str:
    """A tick's label."""
    if value == 0:
        return "0"
    return units.show(value, unit_kind, digits=digits)
