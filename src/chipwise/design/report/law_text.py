"""Text of report and card for a search without training: the law that ranked the designs, and its assumptions."""

from __future__ import annotations

from typing import Final

from chipwise.core import units
from chipwise.core.page.markup import safe, section
from chipwise.design.report import facts
from chipwise.design.report.record import ByLaw, RunRecord

CONTENDERS: Final = (
    "The reference design is the Llama-proportioned transformer of least expected loss that is predicted within the "
    "same constraints. The knee is where the front bends most. Nothing was trained."
)
QUALITY: Final = (
    "Quality is the loss that a law of size, shape and text expects; nothing was trained. The interval of a loss "
    "holds what the law does not know of any text; that of a difference is smaller, because both stand under one law."
)
LOAD: Final = """\
Nothing is trained yet: `winner/model.json` is the design, `winner/training.json` the plan of its training, and
`winner/train.sh` trains it with chipwise into `winner/trained/`, a Hugging Face folder:

```bash
DATA=corpus/*.txt winner/train.sh
chipwise measure winner/trained
```

What it costs on its device can be measured before that, with random weights: `chipwise kit RUN` packs the files."""


def told(law: ByLaw) -> dict[str, str]:
    """The law and its assumptions, by name."""
    found = {"law of loss": law.source, "tokens of every training": units.show(law.tokens, "count")}
    if law.plan is not None:
        found["training plan of the winner"] = law.plan
    if law.notes:
        found["outside the law's trainings"] = "; ".join(law.notes)
    return found


def section_of(record: RunRecord) -> str:
    """The page's section on the winner's training; empty if the run trains."""
    if record.law is None:
        return ""
    rows = "".join(f"<dt>{safe(name)}</dt><dd>{safe(text)}</dd>" for name, text in told(record.law).items())
    body = f'<dl class="facts">{rows}</dl><p>{safe(facts.comparison(record))}</p>'
    return section("plan", "Expected loss and training plan", body, safe(QUALITY))


def opening(record: RunRecord) -> str:
    """The winner's expected loss as a clause; empty if the run trains."""
    winner = record.trial(record.winner)
    if winner is None or not facts.by_law(record):
        return ""
    loss = facts.value(record, winner, facts.LOSS)
    shown = record.words.span(loss.value, loss.low, loss.high, facts.LOSS)
    return f"loss {shown} nats per token of the law's text (expected, nothing was trained)"
