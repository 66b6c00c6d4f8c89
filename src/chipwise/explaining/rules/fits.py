"""A model that does not fit in memory: the smallest changes that help."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.core.errors import ChipwiseError, Unsupported
from chipwise.explaining.advice import Proposal, Touches
from chipwise.explaining.question import Case
from chipwise.serve.remedies import remedies_of

TOUCHES: dict[str, Touches] = {"weights": "precision", "tp": "parallelism", "batch": "batching"}


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes the smallest change of each kind that fits: weights, devices, requests, cache."""
    if case.sheet is None:
        return
    try:
        capacity = case.sheet.mem_capacity_bytes
    except Unsupported:
        return
    if case.estimate.peak_memory_bytes <= capacity:
        return
    now = case.question
    for sort in remedies_of(weights=now.weights, tp=now.tp, batch=now.batch):
        questions = [now.but(**{remedy.field: remedy.value}) for remedy in sort]
        answers = case.pricer.price(questions)
        for remedy, question, answer in zip(sort, questions, answers, strict=True):
            if not isinstance(answer, ChipwiseError) and answer.peak_memory_bytes <= capacity:
                yield Proposal(
                    title=f"{remedy.words}, so that it fits",
                    touches=TOUCHES[remedy.field],
                    how=f"serve with {remedy.words}",
                    changed=question,
                    headline="peak_memory",
                    urgent=True,
                    source="memory counted from the kernels: chipwise estimate",
                )
                break
