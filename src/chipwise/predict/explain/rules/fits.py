"""A model that does not fit in memory: the smallest changes that help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chipwise.errors import ChipwiseError, Unsupported
from chipwise.predict.explain.advice import Proposal, Touches
from chipwise.predict.explain.question import Case
from chipwise.predict.served.remedies import Remedy, remedies_of, together

TOUCHES: dict[str, Touches] = {"weights": "precision", "tp": "parallelism", "batch": "batching"}


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes the smallest change of each kind that fits: weights, devices, requests, cache."""
    if case.sheet is None:
        return
    try:
        capacity = case.sheet.usable_bytes
    except Unsupported:
        return
    if case.estimate.peak_memory_bytes <= capacity:
        return
    now = case.question
    sorts = remedies_of(
        runtime=now.served_by, device=case.sheet, weights=now.weights, tp=now.deployment.tp, batch=now.batch
    )
    found = [proposal for sort in sorts if (proposal := _first(case, sort, capacity)) is not None]
    if not found and (proposal := _first(case, together(sorts), capacity)) is not None:
        found = [proposal]
    yield from found


def _first(case: Case, sort: Sequence[Remedy], capacity: float) -> Proposal | None:
    """The first change of kind ``sort`` that makes the model fit."""
    questions = [case.question.but(**dict(remedy.changes)) for remedy in sort]
    answers = case.pricer.price(questions)
    for remedy, question, answer in zip(sort, questions, answers, strict=True):
        if not isinstance(answer, ChipwiseError) and answer.peak_memory_bytes <= capacity:
            return Proposal(
                title=f"{remedy.words}, so that it fits",
                touches=TOUCHES[remedy.field],
                how=f"serve with {remedy.words} ({remedy.option})",
                changed=question,
                headline="peak_memory",
                urgent=True,
                source="memory predicted by chipwise estimate",
            )
    return None
