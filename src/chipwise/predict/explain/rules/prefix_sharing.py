"""Requests with a common prefix: it is computed once and found in the cache afterwards."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.arch.mixers import Attention, LatentAttention
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case
from chipwise.predict.explain.rules.options import PREFIXES, option


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes a prefix cache where tokens are shared; not for recurrent states, which have no prefixes."""
    question = case.question
    found = min(question.shared_tokens, question.prompt_tokens - 1)  # the last one gives the logits
    if case.sheet is None or not case.generates or case.arch.encoder or found <= question.cached_tokens:
        return
    if not all(isinstance(layer.attention, Attention | LatentAttention) for layer in case.arch.layers):
        return
    yield Proposal(
        title=f"the {found:,} tokens that all prompts share are computed once",
        touches="batching",
        how=option(PREFIXES, case) or "a runtime with a prefix cache, such as vLLM or SGLang",
        changed=question.but(cached_tokens=found),
        headline="ttft_p50",
        quality="none; the memory that sharing saves is not counted",
        source="Zheng et al. 2023, SGLang, arXiv:2312.07104; Kwon et al. 2023, vLLM, arXiv:2309.06180, section 4.4",
    )
