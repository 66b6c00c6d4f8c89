"""Says which limits a run's winner breaks or may break, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from chipwise.core import units
from chipwise.design.limits import TIMED, Constraint
from chipwise.design.report import facts, words
from chipwise.design.report.record import RunRecord, Trial

AGAIN = "chipwise search FILE --out FOLDER --resume"
KEPT = "everything that is finished is kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmet:
    """A hard limit that the winner does not meet.

    ``unconfirmed``: a time exceeds its limit, but was measured on a busy machine. ``broken``: the limit is exceeded,
    and another measurement would not help. ``unlikely``: the predicted chance of meeting the limit is below the run's
    confidence.
    """

    constraint: Constraint
    value: float | None
    state: Literal["unconfirmed", "broken", "unlikely"]
    why: str

    @property
    def beyond(self) -> float | None:
        """Relative excess of the value over the limit."""
        return None if self.value is None else self.constraint.excess(self.value)


def unmet(record: RunRecord) -> tuple[Unmet, ...]:
    """Hard limits that a search's winner does not meet; empty if it meets all of them, or if there is no winner."""
    winner = record.trial(record.winner)
    if winner is None or record.start is not None:
        return ()
    found = (_unmet(record, winner, check) for check in facts.checks(record, winner) if check.constraint.hard)
    return tuple(item for item in found if item is not None)


def _unmet(record: RunRecord, winner: Trial, check: facts.Check) -> Unmet | None:
    limit, name = check.constraint, record.words.label(check.constraint.metric)
    if limit.task is not None and check.measured is None:
        score = winner.tasks.get(limit.task)
        why = "it was not evaluated" if score is None or score.failed is None else score.failed
        return Unmet(constraint=limit, value=None, state="broken", why=f"{name} is unknown: {why}")
    if check.status == "broken" and check.measured is not None:
        past = units.show(limit.excess(check.measured), "share", digits=2)
        measured = record.words.show(check.measured, limit.metric)
        shown = f"{name} is {measured}, {past} past its limit {words.limit(limit.text)}"
        if winner.clean is not False or limit.metric not in TIMED:
            return Unmet(constraint=limit, value=check.measured, state="broken", why=shown)
        promise = check.promised
        before = f"; predicted: {record.words.show(promise.value, limit.metric)}" if promise.value is not None else ""
        busy = f" ({winner.reason})" if winner.reason else ""
        why = f"{shown}, measured while the machine was busy{busy}{before}"
        return Unmet(constraint=limit, value=check.measured, state="unconfirmed", why=why)
    wanted = facts.DEFAULT_CONFIDENCE if record.target.confidence is None else record.target.confidence
    unmeasured = not record.target.measures or "@" in limit.metric
    if unmeasured and check.status == "at risk" and check.chance is not None and check.chance < wanted:
        likely, enough = (units.show(share, "share", digits=2) for share in (check.chance, wanted))
        why = f"the chance of {name} {words.limit(limit.text)} is {likely}, but at least {enough} is required"
        return Unmet(constraint=limit, value=check.promised.value, state="unlikely", why=why)
    return None


def verdict(record: RunRecord) -> str:
    """One sentence on the limits that the winner does not meet; empty if it meets all of them."""
    found = unmet(record)
    if not found:
        return ""
    sure = any(item.state != "unconfirmed" for item in found)
    opening = (
        "No candidate was found within the limits; this is the one that comes closest"
        if sure
        else "Limits are not confirmed for this winner"
    )
    return f"{opening}: {'; '.join(item.why for item in found)}."


def next_step(record: RunRecord) -> str:
    """Says how to go on with a run that stopped early or whose winner breaks limits; empty for other runs."""
    found = unmet(record)
    if record.status == "partial":
        change = " FILE may have a larger budget, other limits or another seed:" if record.stopped else ""
        return f"To continue ({KEPT}):{change} {AGAIN}"
    if not found:
        return ""
    if all(item.state == "unconfirmed" for item in found):
        return f"To measure again, when the machine is idle: {AGAIN}"
    return f"To continue ({KEPT}), loosen these limits or raise the budget in FILE: {AGAIN}"
