"""Report sections of an image classifier: test images with their labels, and confused classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from chipwise.training.tasks.protocol import Section
from chipwise.training.tasks.sections import answers, confusion_table, figure, grid

PIXELS = 72  # of a shown image


def sections(samples: Mapping[str, Any]) -> Sequence[Section]:
    """The sections ``images`` and ``confusion``, as far as the samples hold them."""
    found = []
    if samples.get("images"):
        note = "Test images, their labels, and the answers of winner and reference design; wrong ones in bold."
        html = grid(note, map(_figure, samples["images"]))
        found.append(Section(name="images", title="What it sees", html=html))
    if samples.get("confusion"):
        html = confusion_table(samples["confusion"], samples["classes"])
        found.append(Section(name="confusion", title="Which classes it confuses", html=html))
    return found


def _figure(item: Mapping[str, Any]) -> str:
    label = escape(str(item["label"]))
    caption = [label, *answers(item, item["label"])]
    return figure(item["image"], label, caption, size=(PIXELS, PIXELS), room="9em", pixelated=True)
