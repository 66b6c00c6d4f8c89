"""Policy: how a stack's scheduler forms steps, and its overhead per request. One default for each runtime.

Defaults are those of the projects' own documentation, as of the versions named. Times count from the engine's door:
what HTTP and tokenizer take is added where it is known (``chipwise plan check`` learns it).
"""

from __future__ import annotations

from dataclasses import dataclass

from chipwise.core.errors import SpecError
from chipwise.hardware.runtime import Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Speculative decoding: each step checks ``drafted`` tokens.

    Each is accepted with probability ``acceptance`` if those before it were. ``draft_s`` is what drafting one token
    adds to a step, in seconds.

    References:
        Leviathan, Kalman and Matias 2023, Fast inference from transformers via speculative decoding, equation 1.
    """

    drafted: int
    acceptance: float
    draft_s: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.drafted <= 64:
            raise SpecError(f"must be from 1 to 64, not {self.drafted}", field="drafted")
        if not 0 <= self.acceptance <= 1:
            raise SpecError(f"must be from 0 to 1, not {self.acceptance}", field="acceptance")

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens that one step gives: those accepted, and one of the model's own."""
        a, k = self.acceptance, self.drafted
        return k + 1.0 if a == 1 else (1 - a ** (k + 1)) / (1 - a)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a scheduler may do in a step.

    Attributes:
        most_tokens: Tokens that one step may hold, decoded sequences included.
        most_sequences: Sequences that run at once.
        chunked: Whether a prompt may be read in several steps.
        mixed: Whether prompts are read in the steps that decode; otherwise in steps of their own, which come first.
        lookahead: Steps that are formed while an earlier one runs: what arrives has to wait for them.
        block_tokens: Positions of one block of the cache.
        prefix_cache: Whether prompts that begin alike find their beginning in the cache.
        padded: Whether the prompts of a step are padded to the longest (encoders without packing).
        timeout_s: After which a client gives up; its request is aborted. None: never.
        request_s: What a request takes before it can be scheduled (HTTP, tokenizer), in seconds.
        answer_s: What its answer takes on the way back.
        jitter_s: Mean extra delay of the way back, drawn from an exponential distribution.
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

    def __post_init__(self) -> None:
        for name in ("most_tokens", "most_sequences", "block_tokens"):
            if getattr(self, name) < 1:
                raise SpecError(f"must be at least 1, not {getattr(self, name)}", field=name)
        for name in ("request_s", "answer_s", "jitter_s"):
            if getattr(self, name) < 0:
                raise SpecError(f"must be at least 0, not {getattr(self, name)}", field=name)
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise SpecError(f"must be more than 0, not {self.timeout_s}", field="timeout_s")


def policy_of(runtime: Runtime, *, generates: bool = True) -> Policy:
    """The defaults of a runtime's own server; of models that generate nothing, steps are packed with whole texts.

    vLLM 0.19 (docs.vllm.ai, EngineArgs: 8,192 tokens and 256 sequences on an API server, asynchronous scheduling),
    SGLang (--chunked-prefill-size 8192, prompts before decoding, overlap scheduler), TensorRT-LLM (max_num_tokens 8192,
    max_batch_size 2048, in-flight batching), llama.cpp's server (-ub 512, -np 4 slots); others one request at a time.
    """
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
