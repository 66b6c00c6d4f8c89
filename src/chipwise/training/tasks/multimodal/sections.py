"""Report sections of visual questions: test images with questions, and accuracy by right answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from chipwise.training.tasks.protocol import Section
from chipwise.training.tasks.sections import answers, figure, grid, shown, table

PIXELS = 72  # of a shown image


def sections(samples: Mapping[str, Any]) -> Sequence[Section]:
    """The sections ``questions`` and ``answers``, as far as the samples hold them."""
    found = []
    if samples.get("questions"):
        note = (
            "Test images with a question, the right answer, and the answers of winner and reference design; wrong "
            "ones in bold."
        )
        html = grid(note, map(_figure, samples["questions"]))
        found.append(Section(name="questions", title="What it answers", html=html))
    if rows := samples.get("by_answer"):
        who = shown(rows[0])
        html = table(
            "Test questions by their right answer, and the share that is answered so.",
            ["right answer", "questions", *(name for _, name in who)],
            [
                (escape(str(row["answer"])), row["questions"], *(f"{100 * row[key]:.0f} %" for key, _ in who))
                for row in rows
            ],
        )
        found.append(Section(name="answers", title="Which answers it gets right", html=html))
    return found


def _figure(item: Mapping[str, Any]) -> str:
    question = escape(str(item["question"]))
    caption = [f"<i>{question}</i>", f"right: {escape(str(item['answer']))}", *answers(item, item["answer"])]
    return figure(item["image"], f"image of: {question}", caption, size=(PIXELS, PIXELS), room="11em", pixelated=True)
