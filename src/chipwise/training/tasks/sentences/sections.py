"""Report sections of a text classifier: test texts with their labels, and a confusion matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from chipwise.core.record import Record
from chipwise.training.tasks.protocol import Section
from chipwise.training.tasks.sections import answers, confusion_table, table


def sections(samples: Mapping[str, object]) -> Sequence[Section]:
    """The report sections ``texts`` and ``confusion``; a section without samples is left out."""
    held, found = Record.of(samples), []
    if texts := held.records("texts"):
        note = "Test texts, their labels, and the answers of winner and reference design; wrong ones in bold."
        rows = []
        for item in texts:
            right = item.get("label", str)
            rows.append((escape(item.get("text", str)), escape(right), *answers(item, right)))
        head = ("text", "label", "winner", "reference")[: max(map(len, rows))]
        found.append(Section(name="texts", title="What it reads", html=table(note, head, rows)))
    if counts := held.sequence("confusion", tuple[int, ...]):
        html = confusion_table(counts, held.sequence("classes", str), entries="test texts")
        found.append(Section(name="confusion", title="Confused classes", html=html))
    return found
