"""Texts on the law that ranked the designs of a search without training, and on its assumptions; for page and card."""

from __future__ import annotations

from typing import Final

from chipwise.core import units
from chipwise.core.page.markup import safe, section
from chipwise.design.report import facts
from chipwise.design.report.record import ByLaw, RunRecord

CONTENDERS: Final = (
    "The reference design is the transformer with Llama's proportions that has the least expected loss among those "
    "predicted to meet the same constraints. The knee is where the front bends most. Nothing was trained."
)
QUALITY: Final = (
    "Quality is the loss that a law expects from size, shape and text; nothing was trained. The interval of a loss "
    "includes the uncertainty about the text; the interval of a difference is smaller, because both designs share "
    "the text."
)
LOAD: Final = """\
Nothing is trained yet: `winner/model.json` is the design, `winner/training.json` is its training plan, and
`winner/train.sh` trains it with chipwise and writes a Hugging Face folder, `winner/trained/`:

```bash
DATA=corpus/*.txt winner/train.sh
chipwise measure winner/trained
```

The model's costs on its device can be measured before training, with random weights: `chipwise kit RUN` packs the
files."""


def told(law: ByLaw) -> dict[str, str]:
    """Facts about the law and its assumptions, with their labels, as shown on page and card."""
    found = {"law of loss": law.source, "tokens of every training run": units.show(law.tokens, "count")}
    if law.plan is not None:
        found["training plan of the winner"] = law.plan
    if law.notes:
        found["outside the law's training runs"] = "; ".join(law.notes)
    return found


def section_of(record: RunRecord) -> str:
    """The page's section on expected loss and training plan; empty for a run that trains."""
    if record.law is None:
        return ""
    rows = "".join(f"<dt>{safe(name)}</dt><dd>{safe(text)}</dd>" for name, text in told(record.law).items())
    body = f'<dl class="facts">{rows}</dl><p>{safe(facts.comparison(record))}</p>'
    return section("plan", "Expected loss and training plan", body, safe(QUALITY))


def opening(record: RunRecord) -> str:
    """A clause with the winner's expected loss; empty for a run that trains."""
    winner = record.trial(record.winner)
    if winner is None or not facts.by_law(record):
        return ""
    loss = facts.value(record, winner, facts.LOSS)
    shown = record.words.span(loss.value, loss.low, loss.high, facts.LOSS)
    return f"loss {shown} nats per token of the law's text (expected, nothing was trained)"
