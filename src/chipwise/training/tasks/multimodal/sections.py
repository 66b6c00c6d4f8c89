"""Report sections of questions about images: test images with questions, and accuracy for each right answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from chipwise.core.record import Record
from chipwise.training.tasks.protocol import Section
from chipwise.training.tasks.sections import answers, figure, grid, shown, table

PIXELS = 72  # side of a shown image


def sections(samples: Mapping[str, object]) -> Sequence[Section]:
    """The report sections ``questions`` and ``answers``; a section without samples is left out."""
    held, found = Record.of(samples), []
    if questions := held.records("questions"):
        note = (
            "Test images with a question, the right answer, and the answers of winner and reference design; wrong "
            "ones in bold."
        )
        html = grid(note, map(_figure, questions))
        found.append(Section(name="questions", title="What it answers", html=html))
    if rows := held.records("by_answer"):
        who = shown(rows[0])
        html = table(
            "Number of test questions by right answer, and the share that each model answers correctly.",
            ["right answer", "questions", *(name for _, name in who)],
            [
                (
                    escape(row.get("answer", str)),
                    row.get("questions", int),
                    *(f"{100 * row.get(key, float):.0f} %" for key, _ in who),
                )
                for row in rows
            ],
        )
        found.append(Section(name="answers", title="Accuracy by right answer", html=html))
    return found


def _figure(item: Record) -> str:
    question, right = escape(item.get("question", str)), item.get("answer", str)
    caption = [f"<i>{question}</i>", f"right: {escape(right)}", *answers(item, right)]
    return figure(
        item.get("image", str), f"image of: {question}", caption, size=(PIXELS, PIXELS), room="11em", pixelated=True
    )
