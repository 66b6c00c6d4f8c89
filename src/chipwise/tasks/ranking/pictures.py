"""What a report shows of a ranking model: top lists of some requests, and recall by the length of the list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from chipwise.core import units
from chipwise.core.statistics import Z90
from chipwise.tasks.protocol import Picture

WHO = (("winner", "winner"), ("baseline", "reference"))


def drawn(samples: Mapping[str, Any]) -> Sequence[Picture]:
    """The sections ``lists`` and ``recall``, as far as the samples hold them."""
    found = []
    if samples.get("requests"):
        note = (
            f"<p>Test requests of {samples['candidates']} candidates: the newest items of the history, what came next, "
            "and what stands first for winner and reference design. The item that came next is bold; the number is its "
            "place.</p>"
        )
        html = note + "".join(_request(item) for item in samples["requests"])
        found.append(Picture(name="lists", title="What it ranks first", html=html))
    if samples.get("recall"):
        found.append(Picture(name="recall", title="How often the next item is found", html=_recall(samples["recall"])))
    return found


def _request(item: Mapping[str, Any]) -> str:
    cells = []
    for who, name in WHO:
        if who in item:
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


def _recall(recalls: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    shown = [(who, name) for who, name in WHO if who in recalls]
    head = "".join(f"<th scope='col'>{name}</th>" for _, name in shown)
    rows = []
    for number, first in enumerate(recalls[shown[0][0]]):
        cells = []
        for who, _ in shown:
            value, half = recalls[who][number]["recall"], Z90 * recalls[who][number]["std_error"]
            cells.append(
                f'<td style="text-align:right">{units.show(value, "share")} ± {units.show(half, "share")}</td>'
            )
        rows.append(f"<tr><th scope='row'>{int(first['length'])}</th>{''.join(cells)}</tr>")
    note = "<p>Recall: share of test requests whose next item is among the first, with 90 % intervals over people.</p>"
    return f"{note}<table><thead><tr><th>first</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
