"""Experts: what falls on them by pencil, laws of the formula, measured calls, errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.errors import SpecError, Unsupported
from chipwise.hardware import datasheet
from chipwise.model.ops.matmul import GroupedMatmul
from chipwise.model.ops.routing import ExpertsOp
from chipwise.predict.kernels import experts, routing

H100 = datasheet.load("h100-sxm")
DEEPSEEK = ExpertsOp(
    tokens=64,
    d_model=7168,
    width=2048,
    experts=256,
    local_experts=256,
    topk=8,
    weights="fp8_block",
    activations="fp8",
)


def test_uniform_tokens_meet_the_experts_that_not_all_of_them_miss() -> None:
    # Two tokens, one of four experts each: an expert is missed with (3/4)^2, so 4 · 7/16 are met.
    load = routing.load(2, 1, 4, 4, routing="uniform", tile=1)
    assert float(load.met) == pytest.approx(4 * 7 / 16)
    assert float(load.rows) == 2


def test_routing_and_operator_agree_on_the_experts_met() -> None:
    load = routing.load(64, 8, 256, 256, routing="uniform", tile=16)
    assert float(load.met) == pytest.approx(DEEPSEEK.met())


def test_balanced_tokens_meet_as_many_experts_as_there_are_pairs() -> None:
    load = routing.load(4, 8, 256, 256, routing="balanced", tile=16)
    assert (float(load.rows), float(load.met)) == (32, 32)
    assert float(load.padded) == 32 * 16  # one row each, in a tile of sixteen


def test_a_device_with_an_eighth_of_the_experts_has_an_eighth_of_the_rows() -> None:
    load = routing.load(1024, 8, 256, 32, routing="balanced", tile=16)
    assert float(load.rows) == 1024 * 8 / 8


def test_a_power_law_meets_fewer_experts_and_has_a_heavier_device_than_uniform() -> None:
    skewed = routing.load(256, 8, 256, 32, routing="power_law_1.2", tile=16)
    even = routing.load(256, 8, 256, 32, routing="uniform", tile=16)
    assert float(skewed.met) < float(even.met)
    assert float(skewed.rows) > float(even.rows)


@given(
    tokens=st.integers(1, 20_000),
    topk=st.integers(1, 8),
    ranks=st.sampled_from([1, 2, 8]),
    law=st.sampled_from(["uniform", "balanced", "power_law_1.2", "power_law_1.01"]),
)
def test_what_is_met_is_held_and_has_rows(tokens: int, topk: int, ranks: int, law: str) -> None:
    load = routing.load(tokens, topk, 64, 64 // ranks, routing=law, tile=16)
    assert 0 < float(load.met) <= 64 / ranks + 1e-9
    assert float(load.met) <= float(load.rows) + 1e-6
    assert float(load.rows) <= max(tokens * topk, 1) + 1e-6
    assert float(load.padded) >= float(load.rows) * (1 - 1e-9)


@given(tokens=st.integers(1, 4096), speedup=st.floats(1.0, 10.0))
def test_more_bandwidth_never_makes_the_formula_slower(tokens: int, speedup: float) -> None:
    op = replace(DEEPSEEK, tokens=tokens)
    numbers = experts.grouped(op, H100, routing="uniform")
    faster = replace(numbers, memory_s=numbers.memory_s / speedup)
    constants = experts.DEFAULTS
    assert experts.base_s(faster, constants, 1e-6) <= experts.base_s(numbers, constants, 1e-6)


def test_weights_of_one_token_are_eight_experts() -> None:
    # One token reads 8 experts of 3 · 7168 · 2048 bytes (and scales, 4 bytes a 128 × 128 block).
    numbers = experts.grouped(replace(DEEPSEEK, tokens=1), H100, routing="balanced")
    weights = 8 * 3 * 7168 * 2048 * (1 + 4 / 128**2)
    assert float(numbers.memory_s) == pytest.approx(weights / 3.35e12, rel=0.01)


@pytest.mark.parametrize(
    ("tokens", "measured_s"),
    [(1, 0.150e-3), (64, 2.546e-3), (1024, 3.926e-3), (8192, 11.262e-3)],
)
def test_measured_calls_on_an_h100(tokens: int, measured_s: float) -> None:
    # vLLM 0.24.0 on an H100 SXM, power_law_1.2, as aiconfigurator-core 0.12.0 lists them.
    found = experts.times(replace(DEEPSEEK, tokens=tokens), H100)
    assert float(found.latency_s) == pytest.approx(measured_s, rel=0.3)
    assert found.situation == "seen"


def test_situations_follow_what_was_left_out() -> None:
    assert experts.times(DEEPSEEK, H100, fold="device:h100-sxm").situation == "sibling"  # the H200 is left
    assert experts.times(DEEPSEEK, H100, fold="family:hopper").situation == "unseen"
    a100 = experts.times(replace(DEEPSEEK, weights="bf16", activations="bf16"), datasheet.load("a100-sxm-80gb"))
    assert a100.situation == "seen"


def test_a_device_left_out_is_not_known_by_its_name() -> None:
    op = DEEPSEEK
    answers = [experts.times(op, each, fold="device:h100-sxm") for each in (H100, replace(H100, name="another"))]
    assert float(answers[0].latency_s) == float(answers[1].latency_s)


def test_intervals_grow_with_ignorance() -> None:
    widths = [float(experts.times(DEEPSEEK, H100, fold=fold).log_halfwidth) for fold in (None, "family:hopper")]
    assert widths[0] < widths[1]


def test_many_sizes_at_once_are_the_same_as_one_by_one() -> None:
    sizes = np.array([1, 7, 64, 4096])
    many = experts.times(replace(DEEPSEEK, tokens=sizes), H100).latency_s
    single = [float(experts.times(replace(DEEPSEEK, tokens=int(size)), H100).latency_s) for size in sizes]
    assert many == pytest.approx(single, rel=1e-4)


def test_a_grouped_product_alone_is_faster_than_the_fused_call() -> None:
    alone = GroupedMatmul(tokens=512, groups=256, k=7168, n=2048, weights="fp8_block", activations="fp8")
    assert experts.times(alone, H100).latency_s < experts.times(DEEPSEEK, H100).latency_s


def test_fp8_experts_are_widened_where_the_device_multiplies_16_bits_only() -> None:
    a100 = datasheet.load("a100-sxm-80gb")
    op = replace(DEEPSEEK, activations="bf16")
    assert experts.product_peak(op.weights, op.activations, a100) == a100.peak("bf16")


def test_a_device_without_the_format_says_so() -> None:
    with pytest.raises(Unsupported, match="apple-a17-pro has no fp8 throughput"):
        experts.times(DEEPSEEK, datasheet.load("apple-a17-pro"))


def test_unknown_routing_and_fold_are_refused() -> None:
    with pytest.raises(Unsupported, match="known: uniform, balanced, power_law_A"):
        experts.times(DEEPSEEK, H100, routing="zipf")
    with pytest.raises(Unsupported, match="device:NAME"):
        experts.times(DEEPSEEK, H100, fold="h100-sxm")


def test_no_tokens_are_refused() -> None:
    with pytest.raises(SpecError, match="tokens: must be at least one, not 0"):
        experts.times(replace(DEEPSEEK, tokens=np.array([4, 0])), H100)
