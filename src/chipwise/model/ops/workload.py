"""Workload: the requests that a model serves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from chipwise.core.fields import check_fields, positive

MOST_TOKENS, MOST_REQUESTS = 100_000_000, 1_000_000  # of one request; at the same time


class Phase(StrEnum):
    """Phase of inference: prefill or decode."""

    PREFILL = "prefill"  # the prompt in one pass; ends with the first token's logits
    DECODE = "decode"  # one new token a pass, reading the KV cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One request shape: ``batch`` prompts of ``prompt_tokens`` and ``new_tokens`` generated after each."""

    prompt_tokens: int = 64
    new_tokens: int = 64
    batch: int = 1

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "prompt_tokens", "new_tokens", most=MOST_TOKENS)
        positive(self, "batch", most=MOST_REQUESTS)

    @property
    def total_tokens(self) -> int:
        """Positions that the KV cache holds at the end."""
        return self.prompt_tokens + self.new_tokens

    def past_tokens(self, phase: Phase) -> int:
        """Cached positions before the pass: none in prefill, those of the middle step in decode."""
        return 0 if phase is Phase.PREFILL else self.prompt_tokens + self.new_tokens // 2

    def query_tokens(self, phase: Phase) -> int:
        """New positions in one pass, per sequence."""
        return self.prompt_tokens if phase is Phase.PREFILL else 1
