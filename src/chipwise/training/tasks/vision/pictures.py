"""What a report shows of an image classifier: test images with their labels, and which classes are confused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from chipwise.training.tasks.protocol import Picture

PIXELS = 72  # of a shown image


def drawn(samples: Mapping[str, Any]) -> Sequence[Picture]:
    """The sections ``images`` and ``confusion``, as far as the samples hold them."""
    found = []
    if samples.get("images"):
        note = "<p>Test images, their labels, and the answers of winner and reference design; wrong ones in bold.</p>"
        shown = "".join(_figure(item) for item in samples["images"])
        style = "display:flex;flex-wrap:wrap;gap:12px"
        html = f'{note}<div style="{style}">{shown}</div>'
        found.append(Picture(name="images", title="What it sees", html=html))
    if samples.get("confusion"):
        html = confusion_table(samples["confusion"], samples["classes"])
        found.append(Picture(name="confusion", title="Which classes it confuses", html=html))
    return found


def _figure(item: Mapping[str, Any]) -> str:
    said = []
    for who, name in (("winner", "winner"), ("baseline", "reference")):
        if who in item:
            answer = escape(str(item[who]))
            said.append(f"{name}: {answer if item[who] == item['label'] else f'<b>{answer}</b>'}")
    label = escape(str(item["label"]))
    image = (
        f'<img src="{escape(str(item["image"]), quote=True)}" width="{PIXELS}" height="{PIXELS}" alt="{label}" '
        'style="image-rendering:pixelated">'
    )
    caption = "<br>".join([label, *said])
    return f'<figure style="margin:0;width:9em;font-size:.85em">{image}<figcaption>{caption}</figcaption></figure>'


def confusion_table(counts: Sequence[Sequence[int]], classes: Sequence[str], *, entries: str = "test images") -> str:
    """Rows are labels, columns what the winner says; shades are shares of the row."""
    head = "".join(f"<th scope='col'>{escape(name)}</th>" for name in classes)
    rows = []
    for name, row in zip(classes, counts, strict=True):
        total = sum(row) or 1
        cells = []
        for said, count in zip(classes, row, strict=True):
            share = count / total
            colour = f"rgba(0,114,178,{share:.2f})" if said == name else f"rgba(213,94,0,{min(1.0, 3 * share):.2f})"
            cells.append(f'<td style="background:{colour};text-align:right">{count or ""}</td>')
        rows.append(f"<tr><th scope='row'>{escape(name)}</th>{''.join(cells)}</tr>")
    note = f"<p>Rows: the label. Columns: what the winner says. Counts of {entries}.</p>"
    return f"{note}<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
