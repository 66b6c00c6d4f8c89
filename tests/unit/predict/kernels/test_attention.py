"""Attention's kernel model: laws of its physics, pencil bounds, folds, odd devices, errors."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.errors import UnknownName, Unsupported
from chipwise.hardware import datasheet
from chipwise.model.ops.attention import AttentionOp
from chipwise.predict.kernels import attention_physics as physics
from chipwise.predict.kernels.attention import SCHEDULES, times
from chipwise.predict.kernels.attention_fit import LANES, fitted, lane
from chipwise.predict.kernels.unfused import unfused_times

H100 = datasheet.load("h100-sxm")
HEADS = st.sampled_from([1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 64, 96])
ANY_LANE = st.sampled_from(LANES)
ANY_CHIP = st.sampled_from(["h100-sxm", "a100-sxm-80gb", "l40s", "rtx-4090", "mi300x", "apple-m2-max", "tpu-v5e"])


def attention(**sizes) -> AttentionOp:
    given_sizes = {"batch": 1, "query_tokens": 1, "past_tokens": 1023, "heads": 32, "kv_heads": 8, "head_size": 128}
    return AttentionOp(**(given_sizes | {"activations": "bf16", "cache": "bf16"} | sizes))


def base(op: AttentionOp, device: str, design: str, schedule: str) -> float:
    chip, call = physics.Chip.of(datasheet.load(device), op.activations), physics.Call.of(op)
    constants = fitted("attention").constants(schedule, design, "all")
    return float(physics.base_s(SCHEDULES[schedule](call, chip), constants))


@given(
    batch=st.integers(1, 512),
    past=st.integers(0, 100_000),
    more=st.integers(1, 100_000),
    kv=HEADS,
    chip=ANY_CHIP,
    design=ANY_LANE,
)
def test_a_longer_cache_never_decodes_faster(batch, past, more, kv, chip, design):
    short = attention(batch=batch, past_tokens=past, heads=4 * kv, kv_heads=kv)
    longer = dataclasses.replace(short, past_tokens=past + more)
    assert base(longer, chip, design, "decode") >= base(short, chip, design, "decode") * (1 - 1e-12)


@given(
    batch=st.integers(1, 512),
    past=st.integers(0, 100_000),
    kv=HEADS,
    sharing=st.integers(2, 8),
    chip=ANY_CHIP,
    design=ANY_LANE,
)
def test_fewer_key_heads_never_decode_slower(batch, past, kv, sharing, chip, design):
    every = attention(batch=batch, past_tokens=past, heads=kv * sharing, kv_heads=kv * sharing)
    shared = dataclasses.replace(every, kv_heads=kv)
    assert base(shared, chip, design, "decode") <= base(every, chip, design, "decode") * (1 + 1e-12)


@given(
    batch=st.integers(1, 64), queries=st.integers(2, 16_000), more=st.integers(1, 4_000), chip=ANY_CHIP, design=ANY_LANE
)
def test_a_longer_prompt_never_takes_less(batch, queries, more, chip, design):
    short = attention(batch=batch, query_tokens=queries, past_tokens=0)
    longer = dataclasses.replace(short, query_tokens=queries + more)
    assert base(longer, chip, design, "context") >= base(short, chip, design, "context") * (1 - 1e-12)


@given(queries=st.integers(2, 8_000), window=st.integers(1, 8_000), chip=ANY_CHIP, design=ANY_LANE)
def test_a_window_never_costs_more_than_none(queries, window, chip, design):
    full = attention(query_tokens=queries, past_tokens=0)
    assert base(dataclasses.replace(full, window=window), chip, design, "context") <= base(
        full, chip, design, "context"
    )


def test_blocks_of_a_causal_prompt_by_hand():
    # 300 queries are 3 tiles of 128; tile i walks over i + 1 blocks of keys: 1 + 2 + 3 = 6 blocks of 128 x 128 scores,
    # 4 · 128 · 128 · 64 FLOPs each, for 2 sequences of 5 heads.
    op = attention(batch=2, query_tokens=300, past_tokens=0, heads=5, kv_heads=1, head_size=64)
    chip = physics.Chip.of(H100, "bf16")
    parts = physics.context(physics.Call.of(op), chip)
    flops = 2 * 5 * 6 * 4 * 128 * 128 * 64
    assert float(parts.compute_s) == pytest.approx(flops / 989.4e12)
    assert float(parts.blocks) == pytest.approx(2 * 5 * 3 / (132 * 3))  # 256 KiB an SM hold three blocks of 80 KiB


def test_a_window_of_one_tile_walks_over_two_blocks():
    # 4 tiles; a window of 128 tokens touches the tile's own block and the one before: 1 + 2 + 2 + 2 = 7.
    op = attention(query_tokens=512, past_tokens=0, heads=1, kv_heads=1, window=128)
    parts = physics.context(physics.Call.of(op), physics.Chip.of(H100, "bf16"))
    assert float(parts.compute_s) == pytest.approx(7 * 4 * 128 * 128 * 128 / 989.4e12)


@pytest.mark.parametrize("name", ["a100-sxm", "h100-sxm", "h200-sxm", "b200", "l40s"])
@pytest.mark.parametrize("stack", ["vllm", "sglang", "trtllm"])
def test_long_caches_take_at_least_their_bytes_over_the_bandwidth(name, stack):
    # 2 · 64 · 32768 · 8 · 128 · 2 bytes = 8.6 GB: 2.6 ms on an H100's 3.35 TB/s; no cache on chip holds 2 % of it.
    device = datasheet.load(name)
    answer = times(attention(batch=64, past_tokens=32767), device, stack=stack)
    least_s = 2 * 64 * 32768 * 8 * 128 * 2 / device.mem_bandwidth_bytes_per_s
    assert 0.98 * least_s <= float(answer.latency_s) <= 2 * least_s


@pytest.mark.parametrize("name", ["a100-sxm", "h100-sxm", "b200", "l40s"])
def test_long_prompts_take_at_least_their_products_over_the_peak(name):
    # 16,384 tokens, causal: 16384²/2 pairs · 4 · 128 FLOPs · 32 heads · 4 sequences = 8.8 TFLOP.
    answer = times(attention(batch=4, query_tokens=16_384, past_tokens=0), datasheet.load(name))
    assert 1.0 < float(answer.latency_s / answer.compute_s) < 3.0


def test_arrays_answer_as_single_calls_do():
    batch, past = np.array([1, 7, 64]), np.array([15, 4095, 511])
    together = times(attention(batch=batch, past_tokens=past), H100)
    alone = [
        float(times(attention(batch=int(b), past_tokens=int(p)), H100).latency_s)
        for b, p in zip(batch, past, strict=True)
    ]
    assert together.latency_s == pytest.approx(alone, rel=1e-5)


def test_prompts_and_single_tokens_may_be_mixed():
    mixed = times(attention(query_tokens=np.array([1, 512]), past_tokens=np.array([512, 0])), H100)
    assert float(mixed.latency_s[0]) == pytest.approx(
        float(times(attention(past_tokens=512), H100).latency_s), rel=1e-5
    )
    assert mixed.latency_s.shape == mixed.log_halfwidth.shape == (2,)


def test_a_fold_does_not_know_what_it_left_out():
    l40s = datasheet.load("l40s")
    assert times(attention(), l40s).situation == "seen"
    left_out = times(attention(), l40s, fold="device:l40s")
    assert left_out.situation == "unseen"
    assert float(left_out.latency_s) != float(times(attention(), l40s).latency_s)
    assert np.all(left_out.log_halfwidth > times(attention(), l40s).log_halfwidth)
    assert times(attention(), H100, fold="device:h100-sxm").situation == "sibling"
    assert times(attention(), H100, fold="family:hopper").situation == "unseen"


def test_every_device_with_tables_has_its_fold_and_family():
    folds = fitted("attention").facts["folds"]
    for name in ("a100-sxm-80gb", "b200-sxm", "gb200", "h100-sxm", "h200-sxm", "l40s", "rtx-pro-6000-server"):
        assert f"device:{name}" in folds
    assert {f"family:{family}" for family in ("hopper", "blackwell", "ada", "ampere")} <= set(folds)


@pytest.mark.parametrize("name", datasheet.names())
def test_every_device_that_multiplies_in_some_format_is_priced(name):
    device = datasheet.load(name)
    for dtype in ("bf16", "fp16", "fp32", "int8"):
        if dtype in device.peak_flops_per_s:
            for op in (
                attention(activations=dtype, cache=dtype),
                attention(query_tokens=512, activations=dtype, cache=dtype),
            ):
                answer = times(op, device)
                assert 0 < float(answer.latency_s) < 60
            return
    pytest.fail(f"{name} multiplies in none of these formats")


def test_designs_follow_stack_and_generation():
    assert lane("vllm", H100, "bf16") == "fa3"
    assert lane("vllm", datasheet.load("b200"), "bf16") == "gen"
    assert lane("vllm", datasheet.load("l40s"), "bf16") == "fa2"
    assert lane("vllm", datasheet.load("l40s"), "fp8") == "flashinfer"  # FlashAttention 2 reads no 8-bit cache
    assert lane("trtllm", H100, "bf16") == "trt-hopper"
    assert lane("vllm", datasheet.load("mi300x"), "bf16") == "other"


def test_unknown_stack_names_the_known():
    with pytest.raises(UnknownName, match="vllm"):
        times(attention(), H100, stack="vlm")


def test_unknown_fold_says_what_folds_are():
    with pytest.raises(Unsupported, match="device:NAME"):
        times(attention(), H100, fold="h100")


def test_a_format_without_a_rate_is_refused():
    with pytest.raises(Unsupported, match="int8"):
        times(attention(activations="int8"), datasheet.load("apple-m1"))


def test_unfused_attention_moves_the_scores():
    # 4096 tokens, 32 heads, bf16: 2 · 4096² · 32 bytes of scores are written, read, written and read again.
    op = attention(query_tokens=4096, past_tokens=0, kv_heads=32, fused=False)
    scores = 2 * 4096 * 4096 * 32
    vectors = 2 * 4096 * 32 * 128
    answer = times(op, H100)
    assert float(answer.memory_s) == pytest.approx((4 * scores + 4 * vectors) / 3.35e12)
    assert float(answer.latency_s) > 3 * float(times(dataclasses.replace(op, fused=True), H100).latency_s)
    assert float(unfused_times(op, H100).latency_s) == float(answer.latency_s)


def test_unfused_attention_costs_little_more_for_one_token():
    # One query reads the cache either way; its scores are 1/256 of that.
    fused, apart = (
        float(times(attention(batch=64, past_tokens=8191, kv_heads=32, fused=f), H100).memory_s) for f in (True, False)
    )
    assert apart == pytest.approx(fused, rel=0.02)
