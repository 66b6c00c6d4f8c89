"""Builds HTML parts of a page: escaped text, sections and tables."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

_QUANTITY = re.compile(r"(?<=\d) (?=(?:%|[nµm]?s|min|h|[kMGT]?B)(?![A-Za-z]))")


def safe(text: object) -> str:
    """Escapes text for HTML, and keeps each number and its unit on one line."""
    return _QUANTITY.sub("\u00a0", html.escape(str(text)))


def section(key: str, title: str, body: str, caption: str = "", kind: str = "") -> str:
    """A section of the page. ``body`` and ``caption`` must be HTML."""
    note = f'<p class="caption">{caption}</p>' if caption else ""
    extra = f' class="{kind}"' if kind else ""
    return f'<section id="{key}"{extra}><h2>{safe(title)}</h2>{note}{body}</section>\n'


def empty(reason: str) -> str:
    """A placeholder text for a section that has nothing to show."""
    return f'<div class="empty">{safe(reason)}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: set[int] | None = None) -> str:
    """A table whose cells must be HTML."""
    kinds = [' class="number"' if i in (numbers or set()) else "" for i in range(len(head))]
    top = "".join(f"<th{kind}>{cell}</th>" for kind, cell in zip(kinds, head, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def text_table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: set[int] | None = None) -> str:
    """A table of cells that are plain text."""
    return table([safe(cell) for cell in head], [[safe(cell) for cell in row] for row in rows], numbers)
