"""More devices than KV heads: several devices keep and read copies of the same heads."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case
from chipwise.predict.explain.rules.change import attentions, mixture


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes one device per KV head in each attention replica, and more replicas, for mixtures that share experts."""
    found, tp = attentions(case.arch), case.question.deployment.tp
    if not found or not mixture(case.arch):
        return
    heads = min(block.kv_heads for block in found)
    if heads >= tp or tp % heads or case.question.batch < case.question.deployment.dp * tp // heads:
        return
    replicas = tp // heads * case.question.deployment.dp
    yield Proposal(
        title=f"{tp} devices for {heads} KV heads -> {replicas} replicas of attention on {heads} each",
        touches="parallelism",
        how=f"--tensor-parallel-size {heads} --data-parallel-size {replicas} with expert parallelism",
        changed=case.question.but(tp=heads, dp=replicas),
        headline="throughput",
        source="vLLM documentation, Data Parallel Deployment; DeepSeek-AI 2024, arXiv:2412.19437, section 3.4",
    )
