"""Candidates that share a context (ranking, sampling, search): the context is read once, each adds its own tokens.

One pass of k candidates with s tokens of their own over a cached context of c tokens costs one prompt's pass, and a
pass of k x s tokens; without sharing it costs k passes over c + s tokens. Attention is priced as reading the shared
cache once a candidate: kernels that read it once for all would do better.

References:
    Juravsky et al. 2024, Hydragen, arXiv:2402.05099; Zheng et al. 2023, SGLang (RadixAttention), arXiv:2312.07104.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chipwise.core.errors import ChipwiseError
from chipwise.explaining.question import Case
from chipwise.explaining.requests import request_of
from chipwise.serve.batching import constants
from chipwise.serve.estimate import grouped
from chipwise.serve.setting import Step
from chipwise.serve.steps import Pass, price_passes

CANDIDATES = (1, 2, 4, 8, 16, 32, 64, 128)
OWN_TOKENS = 16  # of each candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Seconds of scoring some candidates that share a context, with and without sharing."""

    context_tokens: int
    own_tokens: int
    candidates: tuple[int, ...]
    shared_s: tuple[float, ...]
    separate_s: tuple[float, ...]

    def saving(self, i: int) -> float:
        """How many times less work of number ``i`` of the candidates takes by sharing."""
        return self.separate_s[i] / self.shared_s[i]


def shared_context(case: Case) -> Shared | None:
    """The curve for the question's prompt as the context; None where nothing is cached or the chip is this machine."""
    if case.sheet is None or not case.generates or case.arch.encoder:
        return None
    context, count = case.question.prompt_tokens, np.array(CANDIDATES, dtype=np.int64)
    groups, errors = grouped([request_of(case.question, case.sheet.name)])
    if errors:
        return None
    ones = np.ones(len(count), dtype=np.int64)
    steps = (
        Step(batch=ones, query_tokens=context * ones, past_tokens=0 * ones),
        Step(batch=count, query_tokens=OWN_TOKENS * ones, past_tokens=context * ones),
        Step(batch=ones, query_tokens=(context + OWN_TOKENS) * ones, past_tokens=0 * ones),
    )
    group = groups[0]
    try:
        times = price_passes(
            [Pass(setting=group.setting, step=step, device=group.device, rows=len(count)) for step in steps]
        )
    except ChipwiseError:
        return None
    once, own, whole = (constants().step_s(each, group.setting, 0) for each in times)
    return Shared(
        context_tokens=context,
        own_tokens=OWN_TOKENS,
        candidates=CANDIDATES,
        shared_s=tuple(map(float, once + own)),
        separate_s=tuple(map(float, count * whole)),
    )
