"""More or fewer devices for a model: sharding reads weights in parallel, and communicates twice per layer."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.errors import Unsupported
from chipwise.hardware.suited import most_devices
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case
from chipwise.predict.explain.rules.options import TENSOR_PARALLEL, option


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes two and four times the devices for latency, and half of them for price."""
    if case.sheet is None:
        return
    try:
        case.sheet.link("device")
    except Unsupported:
        return
    tp, most = case.question.deployment.tp, most_devices(case.sheet, case.question.served_by)
    for more in (2 * tp, 4 * tp):
        if more <= most:
            yield Proposal(
                title=f"tensor-parallel degree {tp} -> {more}",
                touches="parallelism",
                how=option(TENSOR_PARALLEL, case, more) or f"shard every matrix over {more} devices",
                changed=case.question.but(tp=more),
                source="Shoeybi et al. 2019, Megatron-LM, arXiv:1909.08053",
            )
    if tp > 1:
        yield Proposal(
            title=f"tensor-parallel degree {tp} -> {tp // 2}, for a lower price",
            touches="parallelism",
            how=f"{option(TENSOR_PARALLEL, case, tp // 2) or 'fewer shards'}, and twice the replicas",
            changed=case.question.but(tp=tp // 2),
            headline="usd_per_1k_tokens",
            source="Pope et al. 2022, arXiv:2211.05102, section 3",
        )
