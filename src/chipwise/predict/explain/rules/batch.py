"""Batching: a memory-bound decode step serves more requests in nearly the same time."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.errors import ChipwiseError, Unsupported
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case
from chipwise.predict.explain.rules.options import REQUESTS, option

SLOWER = 1.5  # largest TPOT of a larger batch, over the present one


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes the largest power-of-two multiple of the requests in flight that fits, with TPOT within 1.5 times."""
    if case.sheet is None or not case.generates:
        return
    try:
        capacity = case.sheet.usable_bytes
    except Unsupported:
        return
    sizes = [case.question.batch * 2**i for i in range(1, 9)]
    answers = case.pricer.price([case.question.but(batch=size) for size in sizes])
    best = 0
    for size, answer in zip(sizes, answers, strict=True):
        if isinstance(answer, ChipwiseError) or answer.peak_memory_bytes > capacity:
            break
        if answer.tpot_s > SLOWER * case.estimate.tpot_s:
            break
        best = size
    if best:
        yield Proposal(
            title=f"{case.question.batch} -> {best} requests in flight",
            touches="batching",
            how=option(REQUESTS, case, best) or f"serve {best} requests at once",
            changed=case.question.but(batch=best),
            headline="throughput",
            source="Pope et al. 2022, Efficiently Scaling Transformer Inference, arXiv:2211.05102",
        )
