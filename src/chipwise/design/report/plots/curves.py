"""Draws training curves over all rungs, with winner and reference design on top."""

from __future__ import annotations

from chipwise.core.page.figures import Figure, Trace, axis, figure, scatter
from chipwise.design.report import words
from chipwise.design.report.plots.common import Plot, View, colour, detail
from chipwise.design.report.record import CurvePoint, RunRecord, Trial


def draw(record: RunRecord) -> Plot:
    """Plots the task's metric against CPU seconds of training, and against tokens."""
    metric, labels = record.words.metric.title, record.words.labels
    dotted = f"Dotted lines are {metric} of the training {labels.data}, for winner and reference design. "
    trained = [trial for trial in record.trials if _points(trial, "val_loss")]
    axes = (
        ("CPU time", "cpu_s", "time", "CPU time of the trial's training"),
        (labels.tokens, "tokens", "count", f"{labels.tokens} trained on"),
    )
    return Plot(
        key="curves",
        title="Training curves",
        caption=(
            f"Dots are validation {metric} of the trained weights, large for winner and reference design; most "
            f"training runs are scored only at their end. {dotted if _alike(record) else ''}Curves that end early were "
            "stopped by successive halving."
        ),
        views=tuple(View(label=label, figure=_figure(record, trained, *of)) for label, *of in axes) if trained else (),
        empty="No validation score during training is recorded yet.",
    )


def _alike(record: RunRecord) -> bool:
    """Whether training losses have the same unit as the metric, so that both fit on one axis."""
    return record.words.labels.curve == record.words.metric.title


def _points(trial: Trial, field: str) -> list[CurvePoint]:
    return [
        point for point in trial.curve if getattr(point, field) is not None and point.cpu_s > 0 and point.tokens > 0
    ]


def _figure(record: RunRecord, trials: list[Trial], across: str, unit_kind: str, title: str) -> Figure:
    order = ("candidate", "baseline", "winner")
    traces: list[Trace] = []
    seen: set[str] = set()
    for trial in sorted(trials, key=lambda trial: order.index(record.role(trial))):
        role = record.role(trial)
        traces.append(_line(record, trial, across, "val_loss", first=role not in seen))
        seen.add(role)
        if role != "candidate" and _alike(record) and _points(trial, "train_loss"):
            traces.append(_line(record, trial, across, "train_loss", first=True))
    xs = [value for trace in traces for value in trace["x"]]
    measure = record.words.metric
    losses = [point.val_loss or 0.0 for trial in trials for point in _points(trial, "val_loss")]
    values = [measure.shown(loss) for loss in losses]
    x = axis(xs, unit_kind, title, pad=0.03)
    y = axis(values, measure.unit, measure.title, pad=0.05)
    return figure(traces, height=460, xaxis=x, yaxis=y)


def _line(record: RunRecord, trial: Trial, across: str, field: str, *, first: bool) -> Trace:
    role = record.role(trial)
    points = _points(trial, field)
    training = field == "train_loss"
    kind = f"training {record.words.labels.data}" if training else "validation"
    name = f"{words.role(role)}, trial {trial.number}" if role != "candidate" else "other candidates"
    width = 1 if training else (3 if role != "candidate" else 1.2)
    tail, tokens = detail(record, trial), record.words.labels.tokens
    hover = [
        f"<b>{record.words.quality(getattr(point, field))}</b> ({kind}) after "
        f"{words.quantity(point.cpu_s, 'time')} of CPU time, {words.count(point.tokens)} {tokens}"
        for point in points
    ]
    return scatter(
        "lines" if training else "lines+markers",
        f"{name}, {kind}" if role != "candidate" else name,
        [getattr(point, across) for point in points],
        [record.words.metric.shown(getattr(point, field)) for point in points],
        hover=hover,
        # the hover text describes the candidate once per curve; "%{" in a name must not be read as a template
        hovertemplate="%{hovertext}<br><br>" + tail.replace("%{", "%&#123;") + "<extra></extra>",
        legendgroup=f"{role}{field}",
        showlegend=first,
        line={"color": "@faintline" if role == "candidate" else colour(record, trial), "width": width}
        | ({"dash": "dot"} if training else {}),
        marker={"size": 5 if role == "candidate" else 9},
    )
