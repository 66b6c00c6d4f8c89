"""Latent attention's kernel model: what it reads and multiplies by hand, laws, folds, errors."""

import dataclasses

import numpy as np
import pytest

from chipwise.errors import UnknownName
from chipwise.hardware import datasheet
from chipwise.model.ops.attention import LatentAttentionOp
from chipwise.predict.kernels import attention_physics as physics
from chipwise.predict.kernels.latent import call_of, lane, times

H100 = datasheet.load("h100-sxm")
DEEPSEEK_V3 = {"kv_rank": 512, "rope_size": 64, "nope_size": 128, "value_size": 128}


def latent(**sizes) -> LatentAttentionOp:
    usual = {"batch": 1, "query_tokens": 1, "past_tokens": 4095, "heads": 128, "activations": "bf16", "cache": "bf16"}
    return LatentAttentionOp(**(usual | DEEPSEEK_V3 | sizes))


def test_the_latent_is_read_once_for_all_heads():
    # 576 values of 2 bytes for each of 4096 positions.
    assert float(call_of(latent()).kv_bytes) == pytest.approx(4096 * 576 * 2)


def test_expanded_prompts_read_a_key_and_a_value_a_head():
    # 192 + 128 values of 2 bytes for 1000 positions and 128 heads, whatever the cache's format.
    op = latent(query_tokens=1000, past_tokens=0, absorbed=False, cache="fp8")
    assert float(call_of(op).kv_bytes) == pytest.approx(1000 * 128 * (192 + 128) * 2)


def test_products_count_keys_and_values():
    # 128 heads are whole tiles of 16 rows: 2 · (576 + 512) FLOPs for each of 128 heads and 4096 positions.
    parts = physics.decode(call_of(latent()), physics.Chip.of(H100, "bf16"))
    assert float(parts.compute_s) == pytest.approx(2 * (576 + 512) * 128 * 4096 / 989.4e12)


@pytest.mark.parametrize("name", ["a100-sxm", "h100-sxm", "b200", "l40s"])
@pytest.mark.parametrize("stack", ["sglang", "trtllm"])
def test_many_long_caches_take_at_least_their_bytes_over_the_bandwidth(name, stack):
    # 256 · 16,384 · 576 · 2 bytes = 4.8 GB, for one head.
    device = datasheet.load(name)
    answer = times(latent(batch=256, past_tokens=16_383, heads=1), device, stack=stack)
    assert float(answer.latency_s) >= 0.97 * 256 * 16_384 * 576 * 2 / device.mem_bandwidth_bytes_per_s


def test_eight_times_the_heads_cost_less_than_eight_times_as_much():
    few, many = (float(times(latent(batch=64, heads=heads), H100, stack="trtllm").latency_s) for heads in (16, 128))
    assert few < many < 8 * few


def test_arrays_answer_as_single_calls_do():
    batch = np.array([1, 16, 128])
    together = times(latent(batch=batch), H100, stack="sglang").latency_s
    assert together == pytest.approx(
        [float(times(latent(batch=int(b)), H100, stack="sglang").latency_s) for b in batch], rel=1e-5
    )


def test_vllm_is_taken_for_its_nearest():
    assert lane("vllm", H100) == lane("sglang", H100) == "sglang-hopper"
    assert float(times(latent(), H100).latency_s) == float(times(latent(), H100, stack="sglang").latency_s)


def test_folds_and_situations():
    assert times(latent(), H100).situation == "seen"
    assert times(latent(), H100, fold="device:h100-sxm").situation == "sibling"
    assert times(latent(), H100, fold="family:hopper").situation == "unseen"
    left_out = times(latent(), H100, stack="trtllm", fold="family:hopper")
    assert left_out.log_halfwidth > times(latent(), H100, stack="trtllm").log_halfwidth


@pytest.mark.parametrize(
    "name", ["mi300x", "tpu-v5e", "apple-m2-max", "gaudi3", "xeon-8480-plus", "snapdragon-8-elite"]
)
def test_chips_without_tables_are_priced(name):
    device = datasheet.load(name)
    dtype = "bf16" if "bf16" in device.peak_flops_per_s else "fp16"
    for op in (latent(), latent(query_tokens=512, past_tokens=0, absorbed=False)):
        answer = times(dataclasses.replace(op, activations=dtype, cache=dtype), device)
        assert answer.situation == "unseen"
        assert 0 < float(answer.latency_s) < 60


def test_unknown_stack_names_the_known():
    with pytest.raises(UnknownName, match="trtllm"):
        times(latent(), H100, stack="tensorrt")
