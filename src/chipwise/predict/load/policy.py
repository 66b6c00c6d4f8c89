"""How a runtime's scheduler forms steps, and its overhead per request, with defaults for each runtime.

The defaults come from the documentation of the versions that are named below. A request's times start when the engine
receives it. The time for HTTP and the tokenizer is added if it is known (``chipwise plan check`` fits it).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chipwise.errors import SpecError
from chipwise.hardware.runtime import Runtime
from chipwise.predict.load.load import MOST_WAIT_S

NGRAM = "ngram"
"""Name to give instead of a draft model if drafts are copied from the text (n-grams)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Speculative decoding: in each step, the model checks ``drafted`` tokens.

    A drafted token is accepted with the probability ``acceptance``, provided that all drafted tokens before it were
    accepted. ``draft`` is the draft model, which runs one pass per drafted token. Without it, tokens are copied from
    the text (n-grams) at no cost.

    References:
        Leviathan, Kalman and Matias 2023, Fast inference from transformers via speculative decoding, equation 1.
    """

    drafted: int
    acceptance: float
    draft: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.drafted <= 64:
            raise SpecError(f"must be from 1 to 64, not {self.drafted}", field="drafted")
        if not 0 <= self.acceptance <= 1:
            raise SpecError(f"must be from 0 to 1, not {self.acceptance}", field="acceptance")

    @classmethod
    def read(cls, text: str) -> Speculation:
        """Reads ``MODEL:TOKENS:ACCEPTANCE``, such as ``Qwen/Qwen3-0.6B:4:0.7`` or ``ngram:4:0.4``.

        Raises:
            SpecError: The text has a different form, or a number is out of range.
        """
        name, *rest = text.rsplit(":", 2)
        try:
            drafted, acceptance = int(rest[0]), float(rest[1])
        except (IndexError, ValueError):
            said = f"must be MODEL:TOKENS:ACCEPTANCE, such as Qwen/Qwen3-0.6B:4:0.7 or ngram:4:0.4, not {text!r:.80}"
            raise SpecError(said, field="draft") from None
        return cls(drafted=drafted, acceptance=acceptance, draft=None if name == NGRAM else name)

    def describe(self) -> str:
        """Text such as ``4 tokens drafted by Qwen3-0.6B``."""
        return f"{self.drafted} tokens drafted by {self.draft.rpartition('/')[2] if self.draft else 'n-grams'}"

    @property
    def tokens_per_step(self) -> float:
        """Mean number of tokens per step: the accepted drafted tokens and one token from the model itself."""
        a, k = self.acceptance, self.drafted
        return k + 1.0 if a == 1 else (1 - a ** (k + 1)) / (1 - a)

    def steps(self, tokens: npt.NDArray[np.int64], *, seed: int) -> npt.NDArray[np.int64]:
        """Number of steps, (n,), in which each sequence generates its ``tokens``; drafts are accepted at random."""
        rng = np.random.default_rng(seed)
        left = np.maximum(tokens, 0).astype(np.int64)
        found = np.zeros(len(left), np.int64)
        giving = np.flatnonzero(left)
        while len(giving):
            refused = 1.0 - self.acceptance
            given = rng.geometric(refused, len(giving)) if refused > 0 else np.full(len(giving), self.drafted + 1)
            left[giving] -= np.minimum(given, self.drafted + 1)
            found[giving] += 1
            giving = giving[left[giving] > 0]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules by which a scheduler forms steps.

    Attributes:
        most_tokens: Maximum number of tokens in a step, including one or more for each decoding sequence.
        most_sequences: Maximum number of concurrent sequences.
        chunked: Whether a prompt may be split over several steps.
        mixed: Whether prompts share steps with decoding; otherwise prompts have separate steps, which run first.
        lookahead: Number of steps that are already formed while an earlier step runs; new arrivals wait for them.
        block_tokens: Positions per cache block.
        prefix_cache: Whether shared prefixes of prompts are cached.
        padded: Whether all prompts of a step are padded to the length of the longest (encoders without packing).
        timeout_s: Time after which a client gives up and its request is aborted. None: never.
        request_s: Seconds before a request can be scheduled (HTTP, tokenizer).
        answer_s: Seconds from the end of the step that generates a token until the client receives it.
        jitter_s: Mean of an exponentially distributed extra delay of the answer.
        speculation: Speculative decoding, if any.
    """

    most_tokens: int = 8192
    most_sequences: int = 256
    chunked: bool = True
    mixed: bool = True
    lookahead: int = 0
    block_tokens: int = 16
    prefix_cache: bool = True
    padded: bool = False
    timeout_s: float | None = None
    request_s: float = 0.0
    answer_s: float = 0.0
    jitter_s: float = 0.0
    speculation: Speculation | None = None

    @property
    def width(self) -> int:
        """Number of tokens that a step computes per decoding sequence: the drafted tokens and one more."""
        return self.speculation.drafted + 1 if self.speculation else 1

    def __post_init__(self) -> None:
        for name in ("most_tokens", "most_sequences", "block_tokens"):
            if getattr(self, name) < 1:
                raise SpecError(f"must be at least 1, not {getattr(self, name)}", field=name)
        for name in ("request_s", "answer_s", "jitter_s"):
            if not 0 <= getattr(self, name) <= MOST_WAIT_S:
                raise SpecError(f"must be from 0 to {MOST_WAIT_S:,.0f} s, not {getattr(self, name):g} s", field=name)
        if self.timeout_s is not None and not 0 < self.timeout_s <= MOST_WAIT_S:
            raise SpecError(
                f"must be more than 0 and at most {MOST_WAIT_S:,.0f} s, not {self.timeout_s:g} s", field="timeout_s"
            )


MOST_TOGETHER = 256
"""Maximum number of images, or of ranking requests, in a step."""


def policy_of(runtime: Runtime, *, generates: bool = True, stem: bool = False) -> Policy:
    """Default policy of a runtime's server.

    For models that do not generate, steps are filled with whole texts. For models with a ``stem`` (image models and
    rankers), a request counts as one token of a step.

    Sources: vLLM 0.19 (docs.vllm.ai, EngineArgs: 8,192 tokens and 256 sequences on an API server, asynchronous
    scheduling); SGLang (--chunked-prefill-size 8192, prompts before decoding, overlap scheduler); TensorRT-LLM
    (max_num_tokens 8192, max_batch_size 2048, in-flight batching); llama.cpp's server (-ub 512, -np 4 slots). Other
    runtimes serve one request at a time.
    """
    if stem:
        return Policy(
            most_tokens=MOST_TOGETHER, most_sequences=MOST_TOGETHER, chunked=False, mixed=False, prefix_cache=False
        )
    if not generates:
        return Policy(most_tokens=8192, most_sequences=4096, chunked=False, mixed=False, prefix_cache=False)
    if runtime.name == "vllm":
        return Policy(most_tokens=8192, most_sequences=256, lookahead=1)
    if runtime.name == "sglang":
        return Policy(most_tokens=8192, most_sequences=256, mixed=False, lookahead=1, block_tokens=1)
    if runtime.name == "trtllm":
        return Policy(most_tokens=8192, most_sequences=2048, lookahead=1, block_tokens=32)
    if runtime.stack.startswith("llama.cpp"):
        return Policy(most_tokens=512, most_sequences=4, block_tokens=1)
    return Policy(most_tokens=8192, most_sequences=1, mixed=False, prefix_cache=False, block_tokens=1)
