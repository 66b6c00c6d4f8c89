"""Time per operator of the winner, block by block, coloured by bound."""

from __future__ import annotations

import math
import re

from chipwise.design.report import words
from chipwise.design.report.plots.common import BOUND_COLOURS, Plot, Trace, View, axis, escape, figure, no_data
from chipwise.design.report.plots.roofline import operator_text
from chipwise.design.report.record import Operator, RunRecord


def draw(record: RunRecord) -> Plot:
    """One stack per block, one view per phase."""
    plot = Plot(
        key="operators",
        title="Time per operator of the winner",
        caption=(
            "Each block of the model is a column, each operator in it a piece, in the order in which they run. "
            "Heights are predicted."
        ),
    )
    phases = {phase: ops for phase, ops in record.operators.items() if ops}
    if not phases:
        reason = "There is no winner yet, so there are no operators to show."
        return no_data(plot, reason if record.winner is None else "The winner's operators were not recorded.")
    order = sorted(phases, key=lambda phase: phase != "decode")
    views = tuple(View(label=phase, figure=_figure(phase, list(phases[phase]))) for phase in order)
    measured = any(op.measured_s is not None for ops in phases.values() for op in ops)
    caption = plot.caption + (" A bar across a column is the measured time of the whole block." if measured else "")
    return Plot(key=plot.key, title=plot.title, caption=caption, views=views)


def block(place: str) -> str:
    """The block that a place belongs to: ``layers.3.ffn.up`` is ``L3 ffn``."""
    match = re.match(r"layers\.(\d+)\.(\w+)", place)
    return f"L{match[1]} {match[2].replace('attention', 'attn')}" if match else place.split(".")[0]


def _figure(phase: str, ops: list[Operator]) -> dict[str, object]:
    blocks: dict[str, list[Operator]] = {}
    for op in ops:
        blocks.setdefault(block(op.place), []).append(op)
    total_s = sum(op.predicted_s for op in ops) or math.nan
    pieces: dict[str, list[tuple[str, float, Operator]]] = {}
    for name, members in blocks.items():
        base = 0.0
        for op in members:
            pieces.setdefault(op.bound.lower(), []).append((name, base, op))
            base += op.predicted_s
    measured = {
        name: sum(op.measured_s or 0.0 for op in members)
        for name, members in blocks.items()
        if all(op.measured_s is not None for op in members)
    }
    heights = [sum(op.predicted_s for op in members) for members in blocks.values()]
    y = axis([*heights, *measured.values()], "time", "time per pass", zero=True)
    traces: list[Trace] = [
        {
            "type": "bar",
            "name": f"bound by {escape(bound)} (predicted)",
            "x": [escape(name) for name, _, _ in members],
            "y": [op.predicted_s for _, _, op in members],
            "base": [base for _, base, _ in members],
            "marker": {"color": BOUND_COLOURS.get(bound, "@grey"), "line": {"color": "@plot", "width": 1}},
            "hovertext": [operator_text(phase, op, total_s) for _, _, op in members],
            "hoverinfo": "text",
        }
        for bound, members in sorted(pieces.items())
    ]
    if measured:
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "measured, whole block",
                "x": [escape(name) for name in measured],
                "y": list(measured.values()),
                "marker": {"symbol": "line-ew", "size": 26, "line": {"width": 2.5, "color": "@ink"}},
                "hovertext": [
                    f"<b>{escape(name)}</b><br>measured {words.quantity(seconds, 'time')}<br>"
                    f"predicted {words.quantity(sum(op.predicted_s for op in blocks[name]), 'time')}"
                    for name, seconds in measured.items()
                ],
                "hoverinfo": "text",
            }
        )
    title = f"{phase}: {words.quantity(total_s, 'time')} a pass predicted"
    if len(measured) == len(blocks):
        title += f", {words.quantity(sum(measured.values()), 'time')} measured"
    x = {
        "title": {"text": escape(title), "standoff": 14},
        "type": "category",
        "categoryorder": "array",
        "categoryarray": [escape(name) for name in blocks],
    }
    return figure(
        traces,
        legend_y=-0.32,
        barmode="overlay",
        bargap=0.25,
        xaxis={**x, "linecolor": "@line", "automargin": True},
        yaxis=y,
    )
