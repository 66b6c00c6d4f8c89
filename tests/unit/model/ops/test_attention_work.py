"""Attention of every kind: pairs against the mask itself, bytes by hand, the IO that FlashAttention's paper counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.errors import SpecError
from chipwise.model.ops.attention import AttentionOp, LatentAttentionOp, flash_attention_io, standard_attention_io

counts = st.integers(1, 60)
pasts = st.integers(0, 60)


def attention(**sizes) -> AttentionOp:
    plain = {"batch": 1, "query_tokens": 1, "past_tokens": 0, "heads": 1, "kv_heads": 1, "head_size": 2, "rope": False}
    return AttentionOp(**(plain | sizes))


@given(counts, pasts, counts)
def test_chunks_are_seen_from_their_start(query: int, past: int, chunk: int) -> None:
    op = attention(query_tokens=query, past_tokens=past, chunk=chunk)
    places = range(past, past + query)
    assert op.pairs() == sum(1 for i in places for j in range(i + 1) if i // chunk == j // chunk)
    assert op.kept_tokens() == sum(1 for j in range(past) if j // chunk == past // chunk)


@given(counts, counts)
def test_a_window_of_an_encoder_reaches_half_to_each_side(tokens: int, window: int) -> None:
    band = sum(1 for i in range(tokens) for j in range(tokens) if abs(i - j) <= window // 2)
    assert attention(query_tokens=tokens, window=window, causal=False).pairs() == band
    assert attention(query_tokens=tokens, causal=False).pairs() == tokens**2


def test_attention_to_another_sequence_by_hand() -> None:
    """3 queries of 2 heads see 5 positions; 1 KV head of 4: read 2·5·4 cached and 3·2·4 query values, write results."""
    work = attention(query_tokens=3, past_tokens=5, heads=2, head_size=4, causal=False, cross=True).work()
    assert work.flops == 2 * 15 * (16 + 5)
    assert (work.read_bytes, work.write_bytes) == (4 * (40 + 24), 4 * 24)


def test_a_decode_step_in_narrow_formats_by_hand() -> None:
    """Llama 3 8B, 1,000 tokens before: 2·8·128 bytes a token in FP8; q, k and v in BF16, the new k and v in FP8."""
    op = attention(past_tokens=1000, heads=32, kv_heads=8, head_size=128, activations="bf16", cache="fp8")
    assert op.work().read_bytes == 2 * 8 * 128 * 1000 + 2 * 128 * (32 + 16)
    assert op.work().write_bytes == 2 * 128 * 32 + 128 * 16


def test_unfused_scores_go_through_memory_and_are_all_computed() -> None:
    """6 tokens, 2 heads: 72 scores, 21 of each head's 36 under the mask; each written, read, written and read, FP32."""
    fused, plain = (attention(query_tokens=6, heads=2, fused=fused) for fused in (True, False))
    assert fused.work().flops == 2 * 21 * (8 + 5)
    assert plain.work().flops == 2 * 36 * (8 + 5)
    assert plain.work().read_bytes - fused.work().read_bytes == 2 * 72 * 4
    assert plain.work().write_bytes - fused.work().write_bytes == 2 * 72 * 4


def test_latent_attention_by_hand() -> None:
    """DeepSeek-V3, one token after 9: 10 pairs and 128 heads.

    Absorbed, a pair is 2·(576 + 512) FLOPs and five; 576 values of each position are read once for all heads. Expanded,
    a pair is 2·(192 + 128) and five, and every head has keys and values of its own.
    """
    sizes = {"heads": 128, "kv_rank": 512, "rope_size": 64, "nope_size": 128, "value_size": 128}
    absorbed = LatentAttentionOp(batch=1, query_tokens=1, past_tokens=9, activations="bf16", cache="fp8", **sizes)
    assert absorbed.work().flops == 10 * 128 * (2 * (576 + 512) + 5)
    assert absorbed.work().read_bytes == 9 * 576 + 2 * (128 * 576 + 576)
    assert absorbed.work().write_bytes == 2 * 128 * 512 + 576
    expanded = LatentAttentionOp(batch=1, query_tokens=1, past_tokens=9, absorbed=False, **sizes)
    assert expanded.work().flops == 10 * 128 * (2 * (192 + 128) + 5)
    assert expanded.work().read_bytes == 4 * (128 * 192 + 10 * 128 * (192 + 128))


@given(st.integers(1, 300), st.sampled_from((4, 8, 16)), st.integers(64, 1000))
def test_flash_attention_moves_what_its_loops_move(tokens: int, head_size: int, sram: int) -> None:
    """Algorithm 1, walked: for each block of keys, all blocks of queries with results and two statistics a row."""
    block_k = -(-sram // (4 * head_size))
    block_q = min(block_k, head_size)
    moved = 0
    for start in range(0, tokens, block_k):
        moved += 2 * head_size * min(block_k, tokens - start)
        for first in range(0, tokens, block_q):
            rows = min(block_q, tokens - first)
            moved += rows * (head_size + head_size + 2) + rows * (head_size + 2)
    assert flash_attention_io(tokens=tokens, head_size=head_size, sram_values=sram) == moved


def test_flash_attention_moves_less_than_scores_in_memory() -> None:
    """2,048 tokens of 64 with 100 kB of FP16 on chip: 4Nd + 4N² = 17,301,504 values; 2Nd + 11·(3Nd + 4N) = 4.7 million.

    11 is 2,048 rows in blocks of ceil(51,200 / 256) = 200.
    """
    assert standard_attention_io(tokens=2048, head_size=64) == 17_301_504
    assert flash_attention_io(tokens=2048, head_size=64, sram_values=51_200) == 262_144 + 11 * (393_216 + 8_192)
    with pytest.raises(SpecError, match="sram_values: must be enough for four rows"):
        flash_attention_io(tokens=8, head_size=64, sram_values=255)


def test_masks_that_contradict_are_refused() -> None:
    with pytest.raises(SpecError, match="chunk: attention has a window or chunks"):
        attention(window=4, chunk=4)
    with pytest.raises(SpecError, match="chunk: chunked attention must be causal"):
        attention(chunk=4, causal=False)
