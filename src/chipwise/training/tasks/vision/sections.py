"""Report sections of an image classifier: test images with their labels, and a confusion matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from chipwise.core.record import Record
from chipwise.training.tasks.protocol import Section
from chipwise.training.tasks.sections import answers, confusion_table, figure, grid

PIXELS = 72  # side of a shown image


def sections(samples: Mapping[str, object]) -> Sequence[Section]:
    """The report sections ``images`` and ``confusion``; a section without samples is left out."""
    held, found = Record.of(samples), []
    if images := held.records("images"):
        note = "Test images, their labels, and the answers of winner and reference design; wrong ones in bold."
        html = grid(note, map(_figure, images))
        found.append(Section(name="images", title="What it sees", html=html))
    if counts := held.sequence("confusion", tuple[int, ...]):
        html = confusion_table(counts, held.sequence("classes", str))
        found.append(Section(name="confusion", title="Confused classes", html=html))
    return found


def _figure(item: Record) -> str:
    right = item.get("label", str)
    label = escape(right)
    caption = [label, *answers(item, right)]
    return figure(item.get("image", str), label, caption, size=(PIXELS, PIXELS), room="9em", pixelated=True)
