"""A model that does not fit: the least that must change."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.core.errors import ChipwiseError, Unsupported
from chipwise.explain.advice import Proposal, Touches
from chipwise.explain.question import Case, Question


def rule(case: Case) -> Iterator[Proposal]:
    """The first of each sort that fits: narrower weights, more devices, fewer requests, a narrower cache."""
    if case.sheet is None:
        return
    try:
        capacity = case.sheet.mem_capacity_bytes
    except Unsupported:
        return
    if case.estimate.peak_memory_bytes <= capacity:
        return
    now = case.question
    sorts: list[list[tuple[str, Question]]] = [
        [(f"weights in {name}", now.but(weights=name)) for name in ("fp8", "int8", "int4") if name != now.weights],
        [(f"{tp} devices", now.but(tp=tp)) for tp in (2, 4, 8) if tp > now.tp],
        [(f"{n} requests in flight", now.but(batch=n)) for i in range(1, 9) if (n := now.batch >> i) > 0],
    ]
    for changes in sorts:
        answers = case.pricer.price([question for _, question in changes])
        for (title, question), answer in zip(changes, answers, strict=True):
            if not isinstance(answer, ChipwiseError) and answer.peak_memory_bytes <= capacity:
                yield Proposal(
                    title=f"{title}, so that it fits",
                    touches=_touches(question, now),
                    how=f"serve with {title}",
                    changed=question,
                    headline="peak_memory",
                    urgent=True,
                    source="memory counted from the kernels: chipwise estimate",
                )
                break


def _touches(question: Question, now: Question) -> Touches:
    if question.tp != now.tp:
        return "parallelism"
    return "precision" if question.weights != now.weights else "batching"
