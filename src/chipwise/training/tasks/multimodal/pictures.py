"""What a report shows of answers about images: test images with questions, and how often each answer is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from chipwise.training.tasks.protocol import Picture
from chipwise.training.tasks.vision.pictures import PIXELS

WHO = (("winner", "winner"), ("baseline", "reference"))


def drawn(samples: Mapping[str, Any]) -> Sequence[Picture]:
    """The sections ``questions`` and ``answers``, as far as the samples hold them."""
    found = []
    if samples.get("questions"):
        note = (
            "<p>Test images with a question, the right answer, and the answers of winner and reference design; wrong "
            "ones in bold.</p>"
        )
        shown = "".join(_figure(item) for item in samples["questions"])
        html = f'{note}<div style="display:flex;flex-wrap:wrap;gap:12px">{shown}</div>'
        found.append(Picture(name="questions", title="What it answers", html=html))
    if samples.get("by_answer"):
        found.append(Picture(name="answers", title="Which answers it gets right", html=_table(samples["by_answer"])))
    return found


def _figure(item: Mapping[str, Any]) -> str:
    said = []
    for who, name in WHO:
        if who in item:
            answer = escape(str(item[who]))
            said.append(f"{name}: {answer if item[who] == item['answer'] else f'<b>{answer}</b>'}")
    question = escape(str(item["question"]))
    image = (
        f'<img src="{escape(str(item["image"]), quote=True)}" width="{PIXELS}" height="{PIXELS}" '
        f'alt="image of: {question}" style="image-rendering:pixelated">'
    )
    caption = "<br>".join([f"<i>{question}</i>", f"right: {escape(str(item['answer']))}", *said])
    return f'<figure style="margin:0;width:11em;font-size:.85em">{image}<figcaption>{caption}</figcaption></figure>'


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A row a right answer: questions, and the share that each model answers so."""
    who = [(key, name) for key, name in WHO if key in rows[0]]
    head = "".join(f"<th scope='col'>{name}</th>" for _, name in who)
    body = "".join(
        f"<tr><th scope='row'>{escape(str(row['answer']))}</th><td>{row['questions']}</td>"
        + "".join(f"<td>{100 * row[key]:.0f} %</td>" for key, _ in who)
        + "</tr>"
        for row in rows
    )
    note = "<p>Test questions by their right answer, and the share that is answered so.</p>"
    head = f"<th>right answer</th><th scope='col'>questions</th>{head}"
    return f"{note}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
