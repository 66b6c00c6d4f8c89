"""Peak memory by kind, for the trials where it is known."""

from __future__ import annotations

from chipwise.design.report import facts, words
from chipwise.design.report.plots.common import Plot, Trace, View, axis, escape, figure, no_data
from chipwise.design.report.record import RunRecord, Trial

_COLOURS = ("@launch", "@memory", "@compute", "@knee", "@feasible", "@grey")


def draw(record: RunRecord) -> Plot:
    """One bar per trial and one segment per kind, with measured totals and limits."""
    plot = Plot(
        key="memory",
        title="Memory by kind",
        caption=(
            "Peak memory of a fresh serving process, the runtime included. Pieces are predicted unless they say "
            "measured."
        ),
    )
    trials = [trial for trial in record.trials if any(part.trial == trial.number for part in record.memory)]
    if not trials:
        return no_data(plot, "No breakdown of memory was recorded; the totals are in the table of trials.")
    return Plot(
        key=plot.key,
        title=plot.title,
        caption=plot.caption,
        views=(View(label="memory", figure=_figure(record, trials)),),
    )


def _figure(record: RunRecord, trials: list[Trial]) -> dict[str, object]:
    trials = sorted(
        trials, key=lambda trial: ("winner", "baseline", "candidate").index(record.role(trial)), reverse=True
    )
    names = {trial.number: escape(facts.name(record, trial)) for trial in trials}
    kinds = list(dict.fromkeys((part.kind, part.how) for part in record.memory))
    traces: list[Trace] = []
    for i, (kind, how) in enumerate(kinds):
        parts = [part for part in record.memory if (part.kind, part.how) == (kind, how)]
        texts = [f"<b>{escape(kind)}</b> of {names[part.trial]}<br>{_bytes(part.bytes)}, {how}" for part in parts]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": escape(kind) if how == "predicted" else f"{escape(kind)} (measured)",
                "x": [part.bytes for part in parts],
                "y": [names[part.trial] for part in parts],
                "marker": {"color": _COLOURS[i % len(_COLOURS)], "line": {"color": "@plot", "width": 1}},
                "hovertext": texts,
                "hoverinfo": "text",
            }
        )
    totals_measured = {trial.number: (trial.measured or {}).get("peak_memory") for trial in trials}
    measured = {number: size for number, size in totals_measured.items() if size is not None}
    if measured:
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "measured total",
                "x": list(measured.values()),
                "y": [names[number] for number in measured],
                "marker": {"symbol": "line-ns", "size": 34, "line": {"width": 2.5, "color": "@ink"}},
                "hovertext": [
                    f"<b>{names[number]}</b><br>measured {_bytes(size)}<br>{escape(facts.where(record))}"
                    for number, size in measured.items()
                ],
                "hoverinfo": "text",
            }
        )
    limits = [item.limit for item in record.constraints if item.metric == "peak_memory" and item.op == "<="]
    traces += [
        {
            "type": "scatter",
            "mode": "markers",
            "name": f"limit {_bytes(limit)}",
            "x": [limit] * len(trials),
            "y": [names[trial.number] for trial in trials],
            "marker": {"symbol": "line-ns", "size": 44, "line": {"width": 2.5, "color": "@bad"}},
            "hovertext": [f"limit {_bytes(limit)}"] * len(trials),
            "hoverinfo": "text",
        }
        for limit in limits
    ]
    totals = [sum(part.bytes for part in record.memory if part.trial == trial.number) for trial in trials]
    x = axis([*totals, *measured.values(), *limits], "bytes", "", zero=True)
    return figure(
        traces,
        height=190 + 62 * len(trials),
        legend_y=-0.45,
        barmode="stack",
        bargap=0.35,
        xaxis=x,
        yaxis={
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [names[trial.number] for trial in trials],
            "automargin": True,
            "linecolor": "@line",
        },
    )


def _bytes(value: float) -> str:
    return words.quantity(value, "bytes")
