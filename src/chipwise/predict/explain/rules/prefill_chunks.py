"""Chunked prefill: parts of a prompt are computed within decode steps, so that other requests wait less."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case
from chipwise.predict.explain.rules.options import CHUNKS, option


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes chunked prefill where several requests are served by a runtime with separate prompt passes."""
    runtime = case.question.served_by
    if case.sheet is None or runtime.mixes or case.question.batch < 2 or not case.generates:
        return
    yield Proposal(
        title="chunked prefill: prompts share steps with decode",
        touches="batching",
        how=option(CHUNKS, case) or "a runtime that mixes prompts into decode steps, such as vLLM",
        changed=case.question.but(runtime=replace(runtime, mixes=True)),
        headline="tpot_p50",
        source="Agrawal et al. 2024, Sarathi-Serve, arXiv:2403.02310; waiting times are fitted to serving runs",
    )
