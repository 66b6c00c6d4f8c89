"""What operators do, against a pencil."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.errors import SpecError
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.work import Work
from chipwise.model.ops.workload import Phase, Workload

sizes = st.integers(1, 300)


def test_a_square_fp16_product_of_4096_does_1365_flops_a_byte() -> None:
    """2·4096³ FLOPs over 3·4096²·2 bytes: 4096/3."""
    work = Matmul(m=4096, k=4096, n=4096, weights="fp16", activations="fp16").work()
    assert work.flops == 137_438_953_472
    assert work.bytes == 3 * 4096**2 * 2
    assert work.intensity == pytest.approx(1365.33, abs=0.01)


def test_a_decode_step_reads_each_weight_for_two_flops() -> None:
    work = Matmul(m=1, k=8, n=4, bias=True).work()
    assert work == Work(flops=64 + 4, weight_bytes=128 + 16, read_bytes=32, write_bytes=16)


def test_70_billion_fp16_weights_are_140_gb_a_token() -> None:
    """As one matrix: 140 GB, at an A100's 2 TB/s 70 ms a token."""
    work = Matmul(m=1, k=70_000, n=1_000_000, weights="fp16").work()
    assert work.weight_bytes == 140e9
    assert work.weight_bytes / 2e12 == pytest.approx(0.070)


def test_attention_by_hand() -> None:
    """3 new tokens over 2 old ones: 3 + 4 + 5 = 12 pairs; 2 heads of 4: 16 FLOPs and 5 of softmax a pair and head."""
    op = AttentionOp(batch=1, query_tokens=3, past_tokens=2, heads=2, kv_heads=1, head_size=4, rope=False)
    assert op.pairs() == 12
    work = op.work()
    assert work.flops == 12 * 2 * (16 + 5)
    # keys and values of 2 old tokens: 2·2·4 values; new q (2 heads), k, v (1 head each): 3·4·4 values; FP32
    assert work.read_bytes == 4 * (16 + 48)
    assert work.write_bytes == 4 * 3 * 4 * (2 + 2)


def test_rotation_is_three_flops_a_value_of_queries_and_keys() -> None:
    plain = AttentionOp(batch=2, query_tokens=3, past_tokens=0, heads=4, kv_heads=2, head_size=8, rope=False)
    turned = AttentionOp(batch=2, query_tokens=3, past_tokens=0, heads=4, kv_heads=2, head_size=8)
    assert turned.work().flops - plain.work().flops == 3 * 2 * 3 * (4 + 2) * 8


@given(sizes, st.integers(0, 300), st.integers(1, 400))
def test_pairs_are_those_that_the_mask_leaves(query: int, past: int, window: int) -> None:
    def pairs(window: int | None) -> int:
        op = AttentionOp(batch=1, query_tokens=query, past_tokens=past, heads=1, kv_heads=1, head_size=2, window=window)
        return op.pairs()

    assert pairs(None) == sum(past + i + 1 for i in range(query))
    assert pairs(window) == sum(min(past + i + 1, window) for i in range(query))


@given(sizes, sizes, st.integers(1, 8))
def test_one_pass_does_the_attention_of_all_its_steps(prompt: int, more: int, heads: int) -> None:
    """Prefill of P+M tokens is prefill of P, then M decode steps."""

    def pairs(query: int, past: int) -> int:
        return AttentionOp(batch=1, query_tokens=query, past_tokens=past, heads=heads, kv_heads=1, head_size=2).pairs()

    assert pairs(prompt + more, 0) == pairs(prompt, 0) + sum(pairs(1, prompt + i) for i in range(more))


@given(sizes, sizes, sizes, sizes)
def test_a_product_split_along_rows_does_the_same_flops_and_reads_the_weights_again(
    first: int, second: int, k: int, n: int
) -> None:
    whole = Matmul(m=first + second, k=k, n=n).work()
    parts = Matmul(m=first, k=k, n=n).work() + Matmul(m=second, k=k, n=n).work()
    assert parts.flops == whole.flops
    assert parts.bytes == whole.bytes + 4 * k * n


def test_the_small_operators_by_hand() -> None:
    assert NormOp(rows=2, width=10).work() == Work(flops=80, weight_bytes=40, read_bytes=80, write_bytes=80)
    skip = NormOp(rows=2, width=10, norm="layernorm", skip=True, bias=True).work()
    assert skip == Work(flops=20 * 9, weight_bytes=80, read_bytes=160, write_bytes=160)
    assert Elementwise(function="mul", elements=6, inputs=2).work() == Work(flops=6, read_bytes=48, write_bytes=24)
    assert Elementwise(function="silu", elements=6).work().flops == 30
    assert EmbeddingOp(tokens=3, width=5, rows=100).work() == Work(flops=0, weight_bytes=60, write_bytes=60)


def test_work_of_nothing_has_no_intensity() -> None:
    assert Work(flops=0).intensity == 0.0


def test_a_workload_says_what_each_pass_sees() -> None:
    asked = Workload(prompt_tokens=10, new_tokens=4)
    assert asked.total_tokens == 14
    assert (asked.query_tokens(Phase.PREFILL), asked.past_tokens(Phase.PREFILL)) == (10, 0)
    assert (asked.query_tokens(Phase.DECODE), asked.past_tokens(Phase.DECODE)) == (1, 12)
    with pytest.raises(SpecError, match="batch: must be at least 1"):
        Workload(batch=0)
