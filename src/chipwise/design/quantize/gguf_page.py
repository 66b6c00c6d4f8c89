"""Writes the HTML page and the model card about a chosen GGUF mix of formats."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chipwise.core import units
from chipwise.core.files import read_text, write_output
from chipwise.core.page.document import document
from chipwise.core.page.figures import Figure, Trace, axis, escape, figure, scatter
from chipwise.core.page.markup import safe, section, text_table
from chipwise.deploy.runtimes.ggml import TYPES

if TYPE_CHECKING:
    from chipwise.deploy.export.gguf_read import GgufFile
    from chipwise.design.quantize.gguf_run import GgufMix, QuantisedGguf

_AXES = (("size", "bytes", "size of all tensors"), ("time", "time", "time of a token"))
_ORIGIN = {"name": "general.name", "licence": "general.license", "source": "general.source.url"}
_OF_README = {"licence": "license", "source": "base_model"}  # front matter of a Hugging Face README.md
_UNKNOWN = "not stated in the files"


class StageSeconds:
    """Counts processor seconds by stage. Wraps a progress function, from whose calls it learns the current stage."""

    def __init__(self, on_progress: Callable[[str, int, int], None]) -> None:
        self._on_progress, self._stage, self._since = on_progress, "reading the model", time.process_time()
        self.found: dict[str, float] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Adds up the time of the running stage, begins ``stage``, and calls the wrapped function."""
        self.stop()
        self._stage = stage
        self._on_progress(stage, done, total)

    def stop(self) -> None:
        """Ends the running stage: adds the time since the last call to that stage's time."""
        now = time.process_time()
        self.found[self._stage] = self.found.get(self._stage, 0.0) + now - self._since
        self._since = now


def origin_of(source: Path, file: GgufFile) -> dict[str, str]:
    """The weights' name, licence and source, from the file's metadata or from README.md in ``source``."""
    found = {key: str(file.fields[field]) for key, field in _ORIGIN.items() if field in file.fields}
    readme = source / "README.md"
    if source.is_dir() and readme.exists() and (front := re.match(r"---\n(.*?)\n---", read_text(readme), re.S)):
        for key, field in _OF_README.items():
            if stated := re.search(rf"^{field}:\s*(\S.*)$", front[1], re.M):
                found[key] = stated[1].strip()
    return {key: found.get(key, _UNKNOWN) for key in _ORIGIN}


def write_pages(found: QuantisedGguf, target: Path) -> None:
    """Writes the page and the card next to ``target``.

    Raises:
        MissingExtra: plotly is not installed.
        StorageError: The disk is full or the folder cannot be written.
    """
    write_output(target.with_suffix(".html"), page(found))
    write_output(target.with_suffix(".md"), card(found))


def page(found: QuantisedGguf) -> str:
    """The page about the chosen mix, as one HTML document."""
    figures = {key: [_front(found, key, kind, title)] for key, kind, title in _AXES}
    plots = "".join(f'<div class="plot" id="plot-{key}" style="min-height:430px"></div>' for key in figures)
    caption = (
        "Divergence from the source in nats per token: hollow points and the line are predicted, filled points are "
        "measured on held-out text. The line shows the best mix at each size or time if no other limit applies."
    )
    parts = [
        f'<header><h1>{safe(Path(found.source).name)}</h1><p class="muted">{safe(found.plan)}</p></header>',
        f'<div class="answer"><h2>{safe(found.verdict)}</h2>{text_table(("", ""), _facts(found))}</div>',
        section("front", "Size, time and divergence", plots, safe(caption)),
        section("mixes", "Mixes", text_table(*_mixes(found)), "Promised, then measured."),
        section("map", "Formats by layer", _map(found.formats), "Darker cells have more bits per weight."),
    ]
    if found.samples:
        rows = [[name, *texts] for name, texts in found.samples.items()]
        heads = ["", *(f"text {number + 1}" for number in range(len(rows[0]) - 1))]
        parts.append(section("samples", "What they write", text_table(heads, rows), "Each text, continued greedily."))
    costs = [(stage, units.show(seconds, "time")) for stage, seconds in found.cpu_s.items() if seconds >= 0.05]
    parts.append(section("costs", "What it cost", text_table(("stage", "CPU time"), costs, {1})))
    parts.append(section("card", "Card", text_table(("", ""), list(found.origin.items()))))
    return document(f"{Path(found.source).name} · chipwise", "".join(parts), figures=figures)


def card(found: QuantisedGguf) -> str:
    """The card of the written file, as Markdown."""
    heads, rows = _mixes(found)
    lines = [
        f"# {Path(found.file or found.source).name}",
        f"{found.verdict}.",
        "\n".join(f"- {name}: {value}" for name, value in found.origin.items()),
        "\n".join(f"- {name}: {value}" for name, value in _facts(found)),
        found.plan,
        "\n".join("| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *rows)),
    ]
    return "\n\n".join(lines) + "\n"


def _facts(found: QuantisedGguf) -> list[tuple[str, str]]:
    kinds = {"size": "bytes"}
    told = ", ".join(f"{name} ≤ {units.show(limit, kinds.get(name, 'time'))}" for name, limit in found.limits.items())
    return [
        ("limits", told or "none"),
        ("text", f"{found.calibration_tokens:,} tokens for calibration, {found.held_tokens:,} tokens held out"),
        ("prices", found.prices),
    ]


def _mixes(found: QuantisedGguf) -> tuple[list[str], list[list[str]]]:
    heads = ["mix", "size", "token, promised", "measured", "divergence, promised", "measured", "within the limits"]
    rows = []
    for item in (found.chosen, *found.stock):
        times = ("–" if value is None else units.show(value, "time") for value in (item.predicted_s, item.step_s))
        loss = "–" if item.loss is None else f"{item.loss:.4f} ± {item.loss_error:.4f}"
        size = units.show(item.size_bytes, "bytes")
        rows.append([item.name, size, *times, f"{item.predicted_loss:.4f}", loss, "yes" if item.keeps else "no"])
    return heads, rows


def _place(item: GgufMix, key: str, *, measured: bool = False) -> float | None:
    if key == "size":
        return float(item.size_bytes)
    return item.step_s if measured else item.predicted_s


def _front(found: QuantisedGguf, key: str, kind: str, title: str) -> Figure:
    """Draws divergence against size or time: the Pareto front, the stock mixes, and the measured points."""
    front = sorted(
        ((place, item.predicted_loss) for item in found.fronts.get(key, ()) if (place := _place(item, key))),
    )
    traces: list[Trace] = [
        scatter("lines", "best mix, predicted", *_columns(front), line={"color": "@front", "width": 2})
    ]
    for item in (found.chosen, *found.stock):
        colour = "@winner" if item is found.chosen else "@baseline"
        for measured, loss in ((False, item.predicted_loss), (True, item.loss)):
            place = _place(item, key, measured=measured)
            if loss is None or place is None:
                continue
            symbol = "circle" if measured else "circle-open"
            hover = f"{escape(item.name)}{', measured' if measured else ', predicted'}: {units.show(place, kind)}, "
            traces.append(
                scatter(
                    "markers" if measured else "markers+text",
                    item.name,
                    [place],
                    [loss],
                    hover=[f"{hover}{loss:.4f} nats"],
                    text=[item.name],
                    textposition="top center",
                    marker={"color": colour, "symbol": symbol, "size": 10},
                    showlegend=False,
                )
            )
    xs = [float(x) for trace in traces for x in trace["x"]]
    ys = [float(y) for trace in traces for y in trace["y"]]
    if not xs:
        return figure([])
    y = axis([max(value, 1e-6) for value in ys], "count", "divergence in nats per token", log=True, pad=0.12)
    return figure(traces, xaxis=axis(xs, kind, title), yaxis=y)


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _map(formats: Mapping[str, str]) -> str:
    """HTML table of formats: a row per layer, a column per kind of matrix; other matrices are listed above it."""
    layers: dict[int, dict[str, str]] = {}
    outside = []
    for name, kind in formats.items():
        if place := re.match(r"blk\.(\d+)\.(\w+)\.weight", name):
            layers.setdefault(int(place[1]), {})[place[2]] = kind
        else:
            outside.append(f"{name.removesuffix('.weight')}: {kind}")
    parts = list(dict.fromkeys(part for own in layers.values() for part in own))
    rows = "".join(
        f"<tr><td>{number}</td>{''.join(_cell(own.get(part)) for part in parts)}</tr>"
        for number, own in sorted(layers.items())
    )
    head = "".join(f"<th>{safe(part)}</th>" for part in ("layer", *parts))
    table = f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    return f"<p>{safe(', '.join(outside))}</p>{table}"


def _cell(kind: str | None) -> str:
    if kind is None:
        return "<td></td>"
    share = min(85, round(10 * (TYPES[kind].bits - 1)))
    return f'<td style="background:color-mix(in srgb, var(--front) {share}%, transparent)">{safe(kind)}</td>'
