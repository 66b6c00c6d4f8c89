"""Report sections of a ranking model: the items ranked first in some requests, and recall by list length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from chipwise.core import units
from chipwise.core.record import Record
from chipwise.core.statistics import Z90
from chipwise.training.tasks.protocol import Section
from chipwise.training.tasks.sections import shown

RECALL_NOTE = "Recall: share of test requests whose next item is in a list of that length (90 % intervals over users)."


def sections(samples: Mapping[str, object]) -> Sequence[Section]:
    """The report sections ``lists`` and ``recall``; a section without samples is left out."""
    held, found = Record.of(samples), []
    if requests := held.records("requests"):
        note = (
            f"<p>Test requests of {held.get('candidates', int)} candidates: the newest items of the history, what came "
            "next, and what winner and reference design rank first. The item that came next is bold; its rank is next "
            "to each model's name.</p>"
        )
        html = note + "".join(_request(item) for item in requests)
        found.append(Section(name="lists", title="Items ranked first", html=html))
    if "recall" in held:
        title = "How often the next item is found"
        found.append(_table("recall", title, RECALL_NOTE, *_recall(held.record("recall"))))
    return found


def _request(item: Record) -> str:
    cells, right = [], item.get("next", str)
    for who, name in shown(item):
        ranked = item.record(who)
        entries = (f"<b>{escape(e)}</b>" if e == right else escape(e) for e in ranked.sequence("list", str))
        body = "".join(f"<li>{entry}</li>" for entry in entries)
        cells.append(
            f"<div><strong>{name}</strong> (rank {ranked.get('place', int)})"
            f'<ol style="margin:.2em 0 0;padding-left:1.6em">{body}</ol></div>'
        )
    history = escape(" · ".join(item.sequence("history", str)))
    return (
        f'<section style="margin:0 0 1.2em"><p style="margin:0 0 .3em">{history} → <b>{escape(right)}</b></p>'
        f'<div style="display:flex;flex-wrap:wrap;gap:2em;font-size:.9em">{"".join(cells)}</div></section>'
    )


def _table(name: str, title: str, note: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Section:
    """A table as HTML, and as Markdown for the model card. The first cell of each row is the row's header."""
    cells = "".join(f"<th scope='col'>{escape(cell)}</th>" for cell in head)
    body = "".join(
        f"<tr><th scope='row'>{escape(first)}</th>"
        + "".join(f'<td style="text-align:right">{escape(cell)}</td>' for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    html = f"<p>{escape(note)}</p><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"
    lines = [head, ["---"] * len(head), *rows]
    text = f"{note}\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return Section(name=name, title=title, html=html, text=text)


def _recall(recalls: Record) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the recall table."""
    models = shown(recalls)
    columns = [recalls.records(who) for who, _ in models]
    rows = []
    for lengths in zip(*columns, strict=True):
        row = [str(lengths[0].get("length", int))]
        for one in lengths:
            value, half = one.get("recall", float), Z90 * one.get("std_error", float)
            row.append(f"{units.show(value, 'share')} ± {units.show(half, 'share')}")
        rows.append(row)
    return ["first", *(name for _, name in models)], rows
