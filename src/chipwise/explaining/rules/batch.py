"""Batching: a decode step that is bound by memory serves more requests in nearly the same time."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.core.errors import ChipwiseError, Unsupported
from chipwise.explaining.advice import Proposal
from chipwise.explaining.question import Case

SLOWER = 1.5  # times the present time of a token that a larger batch may take


def rule(case: Case) -> Iterator[Proposal]:
    """The largest power of two times the requests in flight that fits, with a token at most half again as slow."""
    if case.sheet is None or not case.generates:
        return
    try:
        capacity = case.sheet.mem_capacity_bytes
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
            how=f"serve {best} requests at once (vLLM: --max-num-seqs {best})",
            changed=case.question.but(batch=best),
            headline="throughput",
            source="Pope et al. 2022, Efficiently Scaling Transformer Inference, arXiv:2211.05102",
        )
