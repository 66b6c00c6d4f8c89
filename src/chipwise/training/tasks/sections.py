"""HTML helpers for the report sections of tasks: grids of captioned figures, and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from chipwise.core.record import Record

WHO = (("winner", "winner"), ("baseline", "reference"))
"""Keys of the shown models in samples, and their names in reports."""


def shown(holder: Record, who: Sequence[tuple[str, str]] = WHO) -> list[tuple[str, str]]:
    """Keys and names of those models in ``who`` that have an entry in ``holder``."""
    return [(key, name) for key, name in who if key in holder]


def answers(item: Record, right: str, who: Sequence[tuple[str, str]] = WHO) -> list[str]:
    """One line per model with the model's answer; wrong answers are bold."""
    found = []
    for key, name in shown(item, who):
        given = item.get(key, str)
        answer = escape(given) or "(nothing)"
        found.append(f"{name}: {answer if given == right else f'<b>{answer}</b>'}")
    return found


def figure(
    image: str, alt: str, caption: Sequence[str], *, size: tuple[int, int], room: str, pixelated: bool = False
) -> str:
    """An image (a data URI) of ``size`` pixels above its caption; ``alt`` and ``caption`` are HTML.

    Args:
        image: The data URI.
        alt: What the image shows.
        caption: Lines of the caption.
        size: Width and height in pixels.
        room: Width of the figure in CSS, such as ``9em``.
        pixelated: Whether single pixels stay visible when the image is enlarged.
    """
    style = ' style="image-rendering:pixelated"' if pixelated else ""
    return (
        f'<figure style="margin:0;width:{room};font-size:.85em">'
        f'<img src="{escape(image, quote=True)}" width="{size[0]}" height="{size[1]}" alt="{alt}"{style}>'
        f"<figcaption>{'<br>'.join(caption)}</figcaption></figure>"
    )


def grid(note: str, figures: Iterable[str]) -> str:
    """A paragraph, with figures side by side below it."""
    return f'<p>{note}</p><div style="display:flex;flex-wrap:wrap;gap:12px">{"".join(figures)}</div>'


def table(note: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A paragraph, with a table of HTML cells below it; the first cell of each row is the row's header."""
    lines = ((str(name), (f"<td>{cell}</td>" for cell in cells)) for name, *cells in rows)
    return f"<p>{note}</p>{table_of(head, lines)}"


def table_of(head: Sequence[str], rows: Iterable[tuple[str, Iterable[str]]]) -> str:
    """An HTML table from the column names and, for each row, a header and ``<td>`` cells."""
    first, *columns = head
    heads = "".join(f"<th scope='col'>{name}</th>" for name in columns)
    lines = (f"<tr><th scope='row'>{name}</th>{''.join(cells)}</tr>" for name, cells in rows)
    return f"<table><thead><tr><th>{first}</th>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def confusion_table(counts: Sequence[Sequence[int]], classes: Sequence[str], *, entries: str = "test images") -> str:
    """A confusion matrix in HTML: a row per label, a column per prediction; cells are shaded by share of the row."""
    rows = []
    for name, row in zip(classes, counts, strict=True):
        total = sum(row) or 1
        cells = []
        for said, count in zip(classes, row, strict=True):
            share = count / total
            colour = f"rgba(0,114,178,{share:.2f})" if said == name else f"rgba(213,94,0,{min(1.0, 3 * share):.2f})"
            cells.append(f'<td style="background:{colour};text-align:right">{count or ""}</td>')
        rows.append((escape(name), cells))
    note = f"<p>Rows: the label. Columns: the winner's prediction. Counts of {entries}.</p>"
    return note + table_of(["", *map(escape, classes)], rows)
