"""Writes the HTML page of a plan or simulation: Pareto front, latency, stages of a request, engine state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chipwise.core import units
from chipwise.core.files import write_output
from chipwise.core.page.document import document
from chipwise.core.page.figures import Figure, Trace, axis, escape, figure, scatter
from chipwise.core.page.markup import safe, section, text_table
from chipwise.core.statistics import Z90
from chipwise.design.fleet.evaluating import Evaluator, scaled
from chipwise.design.fleet.holding import limits_of
from chipwise.design.fleet.question import FleetQuestion
from chipwise.model.published.read import resolve
from chipwise.predict.cost.model import Predicted
from chipwise.predict.load.fleet import Pool, serve
from chipwise.predict.load.load import WHOLE_INPUT, Load, describe_arrivals
from chipwise.predict.load.outcome import metrics_of, over_time, steady

if TYPE_CHECKING:
    from chipwise.design.fleet.answer import FleetPlan, Option
    from chipwise.design.fleet.simulating import Simulation

BEST = 3  # options shown in the figures
LOADS = (0.2, 0.4, 0.6, 0.75, 0.9)  # loads at which an option is evaluated, as shares of its saturation
COLOURS = ("@winner", "@accent", "@compute", "@memory", "@launch")
HEIGHT = 430


class _Page:
    """A page made of sections; some sections have a figure."""

    def __init__(self, title: str, lead: str) -> None:
        self.title, self.parts = title, [f"<h1>{safe(title)}</h1><p>{safe(lead)}</p>"]
        self.figures: dict[str, Sequence[Figure]] = {}

    def add(self, key: str, title: str, body: str, caption: str = "") -> None:
        """Adds a section with ``body`` as HTML."""
        self.parts.append(section(key, title, body, caption))

    def draw(self, key: str, title: str, drawn: Figure, caption: str = "") -> None:
        """Adds a section with a figure."""
        self.figures[key] = [drawn]
        self.add(key, title, f'<div class="plot" id="plot-{key}" style="min-height:{HEIGHT}px"></div>', caption)

    def request(self, times: Mapping[str, Predicted]) -> None:
        """Adds the section with the queue, prefill and decode times of a request."""
        about = "Medians and P99s of queue, prefill and decode times."
        self.draw("life", "The life of a request", _life(times), about)

    def engine(self, state: Mapping[str, Sequence[float]]) -> None:
        """Adds the section on an engine's state over time, if the simulation recorded the state."""
        if state:
            about = "Running and waiting sequences; share of the KV cache in use."
            self.draw("state", "One engine over time", _state(state), about)

    def write(self, path: Path) -> None:
        """Writes the page."""
        write_output(path, document(self.title, "\n".join(self.parts), figures=self.figures))


def write_plan_page(plan: FleetPlan, path: Path) -> None:
    """Writes the plan's page.

    Raises:
        MissingExtra: plotly is not installed.
        StorageError: The file cannot be written.
    """
    page = _Page(f"Plan for {plan.question.model}", plan.headline())
    page.add("question", "What was asked", text_table(["", ""], _asked(plan.question)))
    page.add("options", "Fleets within the limits", _options(plan), _ABOUT_NEEDED)
    if plan.left_out:
        rows = [(each.device, each.reason) for each in plan.left_out]
        page.add("left-out", "Devices that no fleet uses", text_table(["device", "why"], rows))
    if plan.best.commands or plan.best.deployment:
        page.add("serve", "How to start the cheapest fleet", _commands(plan.best.commands, plan.best.deployment))
    if front := _front(plan):
        caption = "Each point is a fleet; coloured points are on the Pareto front."
        page.draw("front", "Price against P99 end-to-end latency", front, caption)
    evaluator = Evaluator(plan.question)
    curves = [_curve(evaluator, option) for option in [each for each in plan.options if each.second is None][:BEST]]
    caption = (
        "Predicted P99 of the time to first token, against requests per second; the band is the 90 % interval. The "
        "dotted line is where the fleet saturates."
    )
    if curves:
        page.draw("rate", "Latency against rate", _rates(evaluator.rate_per_s, curves), caption)
    page.request(plan.best.times)
    page.engine(_state_of(evaluator, plan.best))
    page.write(path)


def write_simulation(found: Simulation, path: Path) -> None:
    """Writes a simulation's page.

    Raises:
        MissingExtra: plotly is not installed.
        StorageError: The file cannot be written.
    """
    page = _Page(f"{found.model} on {found.label}", found.headline())
    page.add("question", "What was asked", text_table(["", ""], _simulated(found)))
    rows = [
        [name, *(units.show(value, "time") for value in (item.value, item.low or 0.0, item.high or 0.0))]
        for name, item in found.times.items()
    ]
    if found.commands or found.deployment:
        page.add("serve", "How to start this arrangement", _commands(found.commands, found.deployment))
    page.add("times", "Times", text_table(["metric", "predicted", "low", "high"], rows, numbers={1, 2, 3}))
    page.request(found.times)
    page.engine(found.state)
    page.write(path)


_ABOUT_NEEDED = (
    "The column 'needed' shows how many devices the cheapest fleet of the same kind would have without prediction "
    "error. Any further devices are a margin for the error."
)


def _asked(question: FleetQuestion) -> list[tuple[str, str]]:
    """The question's model, load, limits and choices, as rows of a table."""
    rows = [("model", question.model), ("load", load_in_words(question))]
    rows += [("limit", f"{where} ≤ {units.show(limit, 'time')}") for where, limit in _limits(question)]
    rows.append(("certainty", f"{units.show(question.confidence, 'share')} probability that all limits are met"))
    chosen = {"devices": question.devices, "runtimes": question.runtimes, "weights": question.weights}
    rows += [(name, ", ".join(values)) for name, values in chosen.items() if values]
    if question.power_w is not None:
        rows.append(("power", f"at most {units.show(question.power_w, 'power')}"))
    if question.usd_per_s is not None:
        rows.append(("budget", f"at most {units.show(question.usd_per_s, 'price_rate')}"))
    rows.append(("devices in all", f"at most {question.most_devices:,}"))
    return rows


def load_in_words(question: FleetQuestion) -> str:
    """Describes the load: its rate, and the tokens of each class of requests."""
    if question.trace is not None:
        return f"the requests of {question.trace}"
    arrives = describe_arrivals(question.rate_per_s, question.arrivals, question.burstiness)
    if resolve(question.model).reads != "token":
        return f"{arrives}; {WHOLE_INPUT}"
    total = sum(each.share for each in question.classes)
    kinds = [
        each.describe()
        if len(question.classes) == 1
        else f"{each.name} ({units.show(each.share / total, 'share')}): {each.describe()}"
        for each in question.classes
    ]
    return "; ".join([arrives, *kinds])


def _limits(question: FleetQuestion) -> list[tuple[str, float]]:
    """Each limit on a time: its name in words, such as ``P99 time to first token``, and its seconds."""
    words = {"ttft": "time to first token", "tpot": "time per output token", "e2e": "time end to end",
             "queue": "time in the queue"}  # fmt: skip
    found = []
    for name, limit in limits_of(question).items():
        kind, _, metric = name.rpartition(":")
        measure, _, statistic = metric.partition("_")
        found.append((f"{statistic.upper()} {words[measure]}{f' of {kind}' if kind else ''}", limit))
    return found


def _simulated(found: Simulation) -> list[tuple[str, str]]:
    """The simulation's model, load and arrangement, as rows of a table."""
    rows = [("model", found.model), ("load", found.load), ("served by", found.label)]
    if found.saturation_per_s is not None:
        rows.append(("saturates at", f"{units.number(found.saturation_per_s)} requests/s ({found.bottleneck})"))
    rows.append(("price", "unknown" if found.usd_per_h is None else f"${found.usd_per_h:,.2f}/h"))
    rows.append(("times are", found.provenance))
    return rows


def _commands(lines: Sequence[str], deployment: str) -> str:
    text = "\n".join([*lines, *deployment.splitlines()])
    return f'<div class="scroll"><pre>{safe(text)}</pre></div>'


def _options(plan: FleetPlan) -> str:
    rows = []
    for option in plan.options:
        price = "unknown" if option.usd_per_h is None else f"${option.usd_per_h:,.2f}/h"
        needed = "–" if option.needed_devices is None else f"{option.needed_devices:,}"
        if option.needed_usd_per_h is not None:
            needed += f" (${option.needed_usd_per_h:,.2f}/h)"
        shown = [
            "–" if each is None else units.span(each.value, each.low, each.high, "time")
            for each in map(option.times.get, ("ttft_p99", "tpot_p99", "itl_p99"))
        ]
        chance = units.show(option.chance, "share", digits=2)
        label = f"{option.label} ({option.about_margin})" if option.pays_for_certainty else option.label
        rows.append((label, price, needed, *shown, chance, option.bottleneck))
    head = ["fleet", "price", "needed", "P99 TTFT", "P99 TPOT", "P99 ITL", "chance", "bottleneck"]
    return text_table(head, rows, numbers={1, 2, 6})


def _front(plan: FleetPlan) -> Figure | None:
    priced = [each for each in plan.options if each.usd_per_h is not None and "e2e_p99" in each.times]
    if not priced:
        return None
    x, y = [each.usd_per_h or 0.0 for each in priced], [each.times["e2e_p99"].value for each in priced]
    front = {each.label for each in plan.front}
    colours = ["@winner" if each.label in front else "@grey" for each in priced]
    trace = scatter(
        "markers+text",
        "",
        x,
        y,
        hover=[escape(each.label) for each in priced],
        text=[escape(f"{each.devices} x {each.device}") for each in priced],
        textposition="top center",
        textfont={"size": 11},
        cliponaxis=False,
        marker={"color": colours, "size": 10},
    )
    hours = axis(x, "count", "dollars an hour")
    return figure([trace], xaxis=hours, yaxis=axis(y, "time", "P99 end to end"), height=HEIGHT)


def _curve(evaluator: Evaluator, option: Option) -> tuple[str, float, list[tuple[float, float, float, float]]]:
    """An option's label, its saturation rate, and for several rates the P99 TTFT with its interval."""
    candidates, _ = evaluator.candidates([option.arrangement])
    candidate = candidates[0]
    pool = Pool(replica=candidate.copy, replicas=option.replicas)
    load = evaluator.load(pool.lanes)
    full, by = candidate.full.requests_per_s * option.replicas, evaluator.question.disturbances

    def p99_s(shifted: Load, z: float) -> float:
        parts = by.replays(lambda each: serve(shifted, pool, slow=scaled(candidate.slow(z), each), most_lanes=1))
        return metrics_of(*map(steady, parts), by=by)["ttft_p99"]

    points = []
    for share in LOADS:
        shifted = load.at_rate(share * full / evaluator.rate_per_s)
        values = [p99_s(shifted, z) for z in (0.0, -Z90, Z90)]
        points.append((share * full, values[0], min(values), max(values)))
    return option.label, full, points


def _rates(rate_per_s: float, curves: Sequence[tuple[str, float, list[tuple[float, float, float, float]]]]) -> Figure:
    traces: list[Trace] = []
    shapes = []
    for (label, full, points), colour in zip(curves, COLOURS, strict=False):
        x, values, low, high = (list(each) for each in zip(*points, strict=True))
        band: Trace = {"fill": "toself", "fillcolor": colour, "opacity": 0.15, "line": {"width": 0}}
        traces.append(scatter("lines", "", x + x[::-1], high + low[::-1], **band, showlegend=False))
        traces.append(scatter("lines+markers", escape(label), x, values, hoverinfo="all", line={"color": colour}))
        shapes.append(_vertical(full, colour, "dot"))
    shapes.append(_vertical(rate_per_s, "@ink", "dash"))
    times = [value for _, _, points in curves for point in points for value in point[1:]]
    across = [point[0] for _, _, points in curves for point in points] + [full for _, full, _ in curves]
    return figure(
        traces,
        xaxis=axis(across, "count", "requests per second"),
        yaxis=axis(times, "time", "P99 time to first token"),
        shapes=shapes,
        height=HEIGHT,
    )


def _vertical(at: float, colour: str, dash: str) -> dict[str, object]:
    ends = {"x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1}
    return {"type": "line", **ends, "line": {"color": colour, "dash": dash}}


def _life(times: Mapping[str, Predicted]) -> Figure:
    """Draws queue, prefill and decode times: their medians and their P99s."""
    traces = []
    labels = {"p50": "median", "p99": "P99"}
    kept = [name for name in labels if f"ttft_{name}" in times and f"e2e_{name}" in times]
    stages = []
    for name in kept:
        queue = times[f"queue_{name}"].value if f"queue_{name}" in times else 0.0
        first, whole = times[f"ttft_{name}"].value, times[f"e2e_{name}"].value
        stages.append((queue, max(first - queue, 0.0), max(whole - first, 0.0)))
    for i, (label, colour) in enumerate((("queue", "@grey"), ("prefill", "@compute"), ("decode", "@memory"))):
        traces.append(
            {
                "type": "bar", "orientation": "h", "name": label, "y": [labels[name] for name in kept],
                "x": [stage[i] for stage in stages], "marker": {"color": colour},
            }
        )  # fmt: skip
    across = axis([0.0, *(sum(stage) for stage in stages)], "time", "seconds since arrival", zero=True)
    return figure(traces, xaxis=across, barmode="stack", height=HEIGHT)


def _state_of(evaluator: Evaluator, option: Option) -> dict[str, list[float]]:
    if option.second is not None:
        return {}
    candidates, _ = evaluator.candidates([option.arrangement])
    served = evaluator.served(candidates[0], option.replicas, 0.0, timeline=True)
    if served.timeline is None:
        return {}
    return {name: values.tolist() for name, values in over_time(served).items()}


def _state(state: Mapping[str, Sequence[float]]) -> Figure:
    at = list(state["at_s"])
    shown = (
        ("running", "running", "@compute"),
        ("waiting", "waiting", "@launch"),
        ("cache_share", "cache in use", "@memory"),
    )
    traces = [
        scatter("lines", label, at, list(state[name]), hoverinfo="all", line={"color": colour})
        for name, label, colour in shown
    ]
    traces[-1] |= {"yaxis": "y2", "line": {"color": "@memory", "dash": "dot"}}
    counts = axis([0.0, *state["running"], *state["waiting"]], "count", "sequences", zero=True)
    right = axis([0.0, 1.0], "share", "cache in use", zero=True) | {"overlaying": "y", "side": "right"}
    return figure(
        traces, xaxis=axis([*at], "time", "time", zero=True), yaxis=counts, yaxis2=right, height=HEIGHT,
        margin={"l": 88, "r": 104, "t": 18, "b": 58},
    )  # fmt: skip
