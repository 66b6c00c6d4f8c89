"""Report sections of a ranking model: top lists of some requests, and recall by the length of the list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from chipwise.core import units
from chipwise.core.statistics import Z90
from chipwise.training.tasks.protocol import Section
from chipwise.training.tasks.sections import shown

Table = tuple[Sequence[str], Sequence[Sequence[str]]]  # head and rows
RECALL_NOTE = "Recall: share of test requests whose next item is among the first, with 90 % intervals over people."


def sections(samples: Mapping[str, Any]) -> Sequence[Section]:
    """The sections ``lists`` and ``recall``, as far as the samples hold them."""
    found = []
    if samples.get("requests"):
        note = (
            f"<p>Test requests of {samples['candidates']} candidates: the newest items of the history, what came next, "
            "and what stands first for winner and reference design. The item that came next is bold; the number is its "
            "place.</p>"
        )
        html = note + "".join(_request(item) for item in samples["requests"])
        found.append(Section(name="lists", title="What it ranks first", html=html))
    if samples.get("recall"):
        title = "How often the next item is found"
        found.append(_tables("recall", title, RECALL_NOTE, [_recall(samples["recall"])]))
    return found


def _request(item: Mapping[str, Any]) -> str:
    cells = []
    for who, name in shown(item):
        entries = (f"<b>{escape(e)}</b>" if e == item["next"] else escape(e) for e in item[who]["list"])
        body = "".join(f"<li>{entry}</li>" for entry in entries)
        cells.append(
            f"<div><strong>{name}</strong> (place {int(item[who]['place'])})"
            f'<ol style="margin:.2em 0 0;padding-left:1.6em">{body}</ol></div>'
        )
    history = escape(" · ".join(item["history"]))
    return (
        f'<section style="margin:0 0 1.2em"><p style="margin:0 0 .3em">{history} → <b>{escape(item["next"])}</b></p>'
        f'<div style="display:flex;flex-wrap:wrap;gap:2em;font-size:.9em">{"".join(cells)}</div></section>'
    )


def _tables(name: str, title: str, note: str, tables: Sequence[Table]) -> Section:
    """Tables as HTML, and as Markdown for the card. The first cell of a row is its head."""
    html, text = [f"<p>{escape(note)}</p>"], [note]
    for head, rows in tables:
        cells = "".join(f"<th scope='col'>{escape(cell)}</th>" for cell in head)
        body = "".join(
            f"<tr><th scope='row'>{escape(first)}</th>"
            + "".join(f'<td style="text-align:right">{escape(cell)}</td>' for cell in rest)
            + "</tr>"
            for first, *rest in rows
        )
        html.append(f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>")
        lines = [head, ["---"] * len(head), *rows]
        text.append("\n".join("| " + " | ".join(line) + " |" for line in lines))
    return Section(name=name, title=title, html="".join(html), text="\n\n".join(text))


def _recall(recalls: Mapping[str, Sequence[Mapping[str, float]]]) -> Table:
    models, rows = shown(recalls), []
    for number, first in enumerate(recalls[models[0][0]]):
        row = [str(int(first["length"]))]
        for who, _ in models:
            value, half = recalls[who][number]["recall"], Z90 * recalls[who][number]["std_error"]
            row.append(f"{units.show(value, 'share')} ± {units.show(half, 'share')}")
        rows.append(row)
    return ["first", *(name for _, name in models)], rows
