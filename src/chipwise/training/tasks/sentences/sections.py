"""Report sections of a classifier of texts: test texts with their labels, and confused classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from chipwise.training.tasks.protocol import Section
from chipwise.training.tasks.sections import answers, confusion_table, table


def sections(samples: Mapping[str, Any]) -> Sequence[Section]:
    """The sections ``texts`` and ``confusion``, as far as the samples hold them."""
    found = []
    if samples.get("texts"):
        note = "Test texts, their labels, and the answers of winner and reference design; wrong ones in bold."
        rows = [
            (escape(item["text"]), escape(item["label"]), *answers(item, item["label"])) for item in samples["texts"]
        ]
        head = ("text", "label", "winner", "reference")[: max(map(len, rows))]
        found.append(Section(name="texts", title="What it reads", html=table(note, head, rows)))
    if samples.get("confusion"):
        html = confusion_table(samples["confusion"], samples["classes"], entries="test texts")
        found.append(Section(name="confusion", title="Which classes it confuses", html=html))
    return found
