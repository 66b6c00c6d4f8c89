"""Attention operators: new positions attend to the KV cache and to each other; and latent attention.

References:
    Dao et al. 2022, FlashAttention, arXiv:2205.14135: algorithms 0 and 1, theorem 2.
    DeepSeek-AI 2024, DeepSeek-V2, arXiv:2405.04434: latent attention, and its absorbed form in section 2.1.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from chipwise.core.dtypes import Size, values_bytes
from chipwise.errors import SpecError
from chipwise.model.ops.op import chunk_triangles, greater, lesser, triangle
from chipwise.model.ops.work import Work

SOFTMAX_FLOPS = 5  # per score: scale, maximum, subtract, exponential, sum
ROTATION_FLOPS = 3  # per value: two products, one sum


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOp:
    """Attention (scores, softmax, values) of ``query_tokens`` new positions to ``past_tokens`` and to each other.

    It includes writing new keys and values to the cache and, with ``rope``, rotary positions. ``window`` is the number
    of tokens that a query attends to, including itself (half on each side if not ``causal``); ``chunk`` limits
    attention to chunks of that many tokens. With ``cross``, queries attend only to ``past_tokens`` of another sequence.
    If ``owns_cache`` is false, the operator reads the cache of an earlier layer, whose operator counts the writes.
    ``biases`` is the number of bias tables (one value per query-key pair and head, added to the scores): 1, or 1 per
    sequence. ``fused`` keeps scores on chip; otherwise they go through memory, and masked scores are computed too.
    """

    kind: ClassVar[str] = "attention"
    batch: Size
    query_tokens: Size
    past_tokens: Size
    heads: Size
    kv_heads: Size
    head_size: Size
    rope: bool = True
    window: Size | None = None
    chunk: Size | None = None
    causal: bool = True
    cross: bool = False
    owns_cache: bool = True
    fused: bool = True
    activations: str = "fp32"
    cache: str = "fp32"
    biases: Size = 0

    def __post_init__(self) -> None:
        if self.window is not None and self.chunk is not None:
            raise SpecError("attention has a window or chunks, not both", field="chunk")
        if self.chunk is not None and not self.causal:
            raise SpecError("chunked attention must be causal", field="chunk")

    def pairs(self) -> Size:
        """Number of query-key pairs that are not masked, per head and sequence."""
        new, past = self.query_tokens, self.past_tokens
        if self.cross:
            return new * past
        if not self.causal:
            if self.window is None:
                return new * (past + new)
            # A band |i - j| <= reach, minus its two corners outside the square.
            reach = lesser(self.window // 2, new - 1)
            return new * past + new * (2 * reach + 1) - 2 * triangle(reach)
        if self.chunk is not None:
            return chunk_triangles(past + new, self.chunk) - chunk_triangles(past, self.chunk)
        if self.window is None:
            return new * past + triangle(new)
        growing = lesser(greater(self.window - past, 0), new)  # queries with fewer past tokens than the window
        return growing * past + triangle(growing) + (new - growing) * self.window

    def kept_tokens(self) -> Size:
        """Number of cache positions that are read per sequence."""
        if self.chunk is not None:
            return self.past_tokens % self.chunk
        if self.window is None:
            return self.past_tokens
        return lesser(self.past_tokens, self.window)

    def work(self) -> Work:
        """FLOPs per query-key pair and head: 4·head_size for two matrix products, 5 for softmax, 1 for any biases.

        Each rotated value takes 3 FLOPs. Unless fused, masked scores are computed too, and all scores are written and
        read twice: before softmax and after it.
        """
        rows = self.batch * self.query_tokens
        new_kv = 0 if self.cross else 2 * rows * self.kv_heads * self.head_size
        queries = rows * self.heads * self.head_size
        rotated = queries + new_kv // 2
        kept = 2 * self.batch * self.kept_tokens() * self.kv_heads * self.head_size
        scores: Size = 0
        pairs = self.batch * self.heads * self.pairs()
        if not self.fused:
            keys = self.past_tokens + (0 if self.cross else self.query_tokens)
            pairs = rows * self.heads * keys
            scores = 2 * values_bytes(pairs, self.activations)
        added = self.biases * self.heads * self.query_tokens * (self.past_tokens + self.query_tokens)
        flops = pairs * (4 * self.head_size + SOFTMAX_FLOPS) + (ROTATION_FLOPS * rotated if self.rope else 0)
        given = queries + new_kv + added
        return Work(
            flops=flops + pairs * lesser(self.biases, 1),
            read_bytes=values_bytes(kept, self.cache) + values_bytes(given, self.activations) + scores,
            write_bytes=values_bytes(queries, self.activations) + values_bytes(new_kv, self.cache) + scores,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttentionOp:
    """Causal multi-head latent attention of new positions to ``past_tokens`` and to each other.

    The cache holds ``kv_rank + rope_size`` values per token for all heads together. ``absorbed`` (decode) works
    directly on these latents: queries and results have the latent's width, and separate matmuls convert them. Otherwise
    (prefill) keys and values have been expanded to ``nope_size + rope_size`` and ``value_size`` per head.
    """

    kind: ClassVar[str] = "latent_attention"
    batch: Size
    query_tokens: Size
    past_tokens: Size
    heads: Size
    kv_rank: Size
    rope_size: Size
    nope_size: Size
    value_size: Size
    absorbed: bool = True
    activations: str = "fp32"
    cache: str = "fp32"

    def pairs(self) -> Size:
        """Number of query-key pairs that the causal mask allows, per head and sequence."""
        return self.query_tokens * self.past_tokens + triangle(self.query_tokens)

    @property
    def key_size(self) -> Size:
        """Width of one head's query or key."""
        return (self.kv_rank if self.absorbed else self.nope_size) + self.rope_size

    @property
    def result_size(self) -> Size:
        """Width of one head's result."""
        return self.kv_rank if self.absorbed else self.value_size

    def work(self) -> Work:
        """FLOPs: 2·(key + result) + 5 per query-key pair and head. If absorbed, heads share one read of the latents."""
        rows = self.batch * self.query_tokens
        pairs = self.batch * self.heads * self.pairs()
        queries, results = rows * self.heads * self.key_size, rows * self.heads * self.result_size
        latent = rows * (self.kv_rank + self.rope_size)
        if self.absorbed:
            past = self.batch * self.past_tokens * (self.kv_rank + self.rope_size)
            read = values_bytes(past, self.cache) + values_bytes(queries + latent, self.activations)
        else:
            seen = self.batch * (self.past_tokens + self.query_tokens)
            expanded = seen * self.heads * (self.key_size + self.value_size)
            read = values_bytes(queries + expanded, self.activations)
        return Work(
            flops=pairs * (2 * (self.key_size + self.result_size) + SOFTMAX_FLOPS),
            read_bytes=read,
            write_bytes=values_bytes(results, self.activations) + values_bytes(latent, self.cache),
        )


def flash_attention_io(*, tokens: int, head_size: int, sram_values: int) -> int:
    """Number of values that FlashAttention moves to and from memory for one head, in a forward pass without a mask.

    Algorithm 1 of the paper: the outer loop reads each key block of ``M / 4d`` rows once. For each block, all queries
    are read, all results are read and written, and two statistics per row are read and written.

    Args:
        tokens: Length N of the sequence.
        head_size: Width d of the head.
        sram_values: Number M of values that fit on chip, at least 4·d.
    """
    if sram_values < 4 * head_size:
        raise SpecError(f"must be enough for four rows of {head_size} values, not {sram_values}", field="sram_values")
    outer = -(-tokens // -(-sram_values // (4 * head_size)))
    return 2 * tokens * head_size + outer * (3 * tokens * head_size + 4 * tokens)


def standard_attention_io(*, tokens: int, head_size: int) -> int:
    """Number of values that attention moves for one head if scores and probabilities are in memory (algorithm 0)."""
    return 4 * tokens * head_size + 4 * tokens**2
