"""``Workload``: the batch of requests that a model serves at once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from chipwise.core.fields import check_fields, positive

MOST_TOKENS, MOST_REQUESTS = 100_000_000, 1_000_000  # most tokens per request; most simultaneous requests


class Phase(StrEnum):
    """Phase of inference: prefill or decode."""

    PREFILL = "prefill"  # the whole prompt in one pass, up to the first token's logits
    DECODE = "decode"  # one new token per pass, reading the KV cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A batch of equal requests: ``batch`` prompts of ``prompt_tokens``, each with ``new_tokens`` generated tokens."""

    prompt_tokens: int = 64
    new_tokens: int = 64
    batch: int = 1

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "prompt_tokens", "new_tokens", most=MOST_TOKENS)
        positive(self, "batch", most=MOST_REQUESTS)

    @property
    def total_tokens(self) -> int:
        """Number of positions in the KV cache at the end of a request."""
        return self.prompt_tokens + self.new_tokens

    def past_tokens(self, phase: Phase) -> int:
        """Number of cached positions before a pass.

        In prefill, it is 0. In decode, it is the number in the middle of generation: the prompt and half of the new
        tokens.
        """
        return 0 if phase is Phase.PREFILL else self.prompt_tokens + self.new_tokens // 2

    def query_tokens(self, phase: Phase) -> int:
        """Number of new positions per sequence in one pass."""
        return self.prompt_tokens if phase is Phase.PREFILL else 1
