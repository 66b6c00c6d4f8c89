"""Which kernels blocks become on one of several devices, what they hold, and what training keeps, all by pencil."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from chipwise.errors import SpecError
from chipwise.hardware import datasheet
from chipwise.hardware.runtime import runtime_named
from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.model.arch.feed_forward import FeedForward, MixtureOfExperts
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention, GatedDelta, LatentAttention, Mamba2
from chipwise.model.kinds.sound.stem import SoundConv, SoundStem
from chipwise.model.ops.attention import AttentionOp, LatentAttentionOp
from chipwise.model.ops.collective import CollectiveOp
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.matmul import ConvOp, GroupedMatmul, Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.routing import ExpertsOp
from chipwise.model.ops.scan import ScanOp
from chipwise.model.ops.work import Work
from chipwise.predict.kernels import times_of
from chipwise.predict.kernels.stream import SHARE
from chipwise.predict.served import feed_forward, mixers, sound
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.memory import cache_bytes, device_memory, resident_bytes, stage_share
from chipwise.predict.served.plan import Plan, check_plan, node_plan
from chipwise.predict.served.request import Request, resolved
from chipwise.predict.served.setting import PlacedOp, Setting, Step, shard
from chipwise.predict.served.sharding import check_stage, communication_s, gathered_bytes, states_bytes
from chipwise.predict.served.steps import PassTimes, class_of
from chipwise.predict.served.training_step import (
    _backward,
    _input_bytes,
    _kept_bytes,
    resident_parameters,
    training_step,
)

FFN = FeedForward(width=24)
ARCH = uniform(vocab_size=100, d_model=16, depth=4, heads=4, kv_heads=2, head_size=8, ffn_width=24, max_tokens=64)
STEP = Step(batch=3, query_tokens=5, past_tokens=7)  # 15 new positions
BARE = replace(runtime_named("vllm"), fused=frozenset())


def setting(runtime: Any = BARE, *, arch: ArchSpec = ARCH, **plan: int) -> Setting:
    known = resolved(Request(model="gpt2", deployment=Deployment(device="h100-sxm"))).setting.formats
    formats = replace(known, weights="fp8", experts="int8", activations="bf16", cache="fp8")
    return Setting(arch=arch, plan=Plan(**plan), formats=formats, runtime=runtime)


def sizes(parts: Any) -> list[tuple[Any, ...]]:
    """Place and sizes of each part."""
    found: list[tuple[Any, ...]] = []
    for part in parts:
        op = part.op
        if isinstance(op, Matmul):
            found.append((part.place, op.m, op.k, op.n))
        elif isinstance(op, Elementwise):
            found.append((part.place, op.function, op.elements))
        elif isinstance(op, NormOp):
            found.append((part.place, op.rows, op.width))
        elif isinstance(op, CollectiveOp):
            found.append((part.place, op.collective, op.payload_bytes, op.devices))
        elif isinstance(op, AttentionOp):
            found.append((part.place, op.batch, op.query_tokens, op.past_tokens, op.heads, op.kv_heads, op.head_size))
        elif isinstance(op, GroupedMatmul):
            found.append((part.place, op.tokens, op.groups, op.k, op.n))
        else:
            found.append((part.place, op))
    return found


def test_attention_on_two_devices() -> None:
    """Each has two of four heads of 8 and one of two KV heads: 16 wide queries, 8 wide keys and values."""
    block = Attention(heads=4, kv_heads=2, head_size=8, qk_norm=True, gate=True)
    assert sizes(mixers.attention(block, setting(tp=2), STEP)) == [
        ("q", 15, 16, 16 + 16),
        ("k", 15, 16, 8),
        ("v", 15, 16, 8),
        ("qk_norm", 15 * (2 + 1), 8),
        ("rope", "rope", 15 * (16 + 8)),
        ("cache", "kv_write", 15 * 16),
        ("attend", 3, 5, 7, 2, 1, 8),
        ("gate", "sigmoid_mul", 15 * 16),
        ("out", 15, 16, 16),
        ("all_reduce", "all_reduce", 2 * 15 * 16, 2),
    ]
    fused = setting(replace(BARE, fused=frozenset({"qkv", "rope_cache", "attention"})))
    whole = list(mixers.attention(replace(block, qk_norm_over="all"), fused, STEP))
    assert sizes(whole) == [
        ("qkv", 15, 16, 32 + 32 + 2 * 16),
        ("qk_norm", 2 * 15, 32),
        ("rope_cache", "rope", 15 * (32 + 2 * 16)),
        ("attend", 3, 5, 7, 4, 2, 8),
        ("gate", "sigmoid_mul", 15 * 32),
        ("out", 15, 32, 16),
    ]
    assert whole[3].op.fused
    assert (whole[3].op.rope, whole[3].op.causal, whole[3].op.cache) == (False, True, "fp8")


def test_attention_without_rotation_or_cache() -> None:
    plain = Attention(heads=4, kv_heads=4, head_size=4, rope=False)
    fused = setting(replace(BARE, fused=frozenset({"rope_cache"})))
    assert [item[:2] for item in sizes(mixers.attention(plain, fused, STEP))][3] == ("rope_cache", "kv_write")
    ahead = replace(plain, causal=False)
    for runtime in (fused, setting()):
        assert [item[0] for item in sizes(mixers.attention(ahead, runtime, STEP))] == ["q", "k", "v", "attend", "out"]
    by_place = sizes(mixers.attention(replace(plain, patch_rope=True), setting(), STEP))
    assert ("patch_rope", "rope", 15 * (16 + 16)) in by_place  # queries and keys of all positions
    unit = replace(plain, pointwise=True)  # HSTU: queries, keys, values and gates of 16 go through SiLU
    assert sizes(mixers.attention(unit, setting(), STEP))[:4] == [
        ("q", 15, 16, 16 + 16),
        ("k", 15, 16, 16),
        ("v", 15, 16, 16),
        ("activation", "silu", 15 * (16 + 16 + 16 + 16)),
    ]
    turned = replace(ahead, rope=True)
    places = [item[0] for item in sizes(mixers.attention(turned, setting(), STEP))]
    assert places == ["q", "k", "v", "rope", "attend", "out"]


def test_cross_attention_makes_keys_in_the_pass_that_encodes_alone() -> None:
    block = Attention(heads=4, kv_heads=2, head_size=8, rope=False, causal=False)
    step = replace(STEP, encoder_tokens=11)
    last = ("all_reduce", "all_reduce", 2 * 15 * 16, 2)
    made = sizes(mixers.cross_attention(block, setting(tp=2), replace(step, encode=True)))
    assert made == [
        ("q", 15, 16, 16),
        ("kv", 3 * 11, 16, 2 * 8),
        ("attend", 3, 5, 11, 2, 1, 8),
        ("out", 15, 16, 16),
        last,
    ]
    later = list(mixers.cross_attention(block, setting(tp=2), step))
    assert [item[0] for item in sizes(later)] == ["q", "attend", "out", "all_reduce"]
    assert (later[1].op.cross, later[1].op.causal, later[1].op.rope) == (True, False, False)


LATENT = LatentAttention(heads=4, kv_rank=12, rope_size=2, nope_size=6, value_size=5, q_rank=10)


def test_latent_attention_is_expanded_over_a_prompt_and_absorbed_in_a_step() -> None:
    """Two of four heads on each device; 12 + 2 latent values, queries through 10."""
    prompt = sizes(mixers.latent_attention(LATENT, setting(tp=2), STEP))
    (attend,) = (item[1] for item in prompt if item[0] == "attend")
    assert [item for item in prompt if item[0] != "attend"] == [
        ("down", 15, 16, 14 + 10),
        ("latent_norm", 15, 12 + 10),
        ("q", 15, 10, 2 * 8),
        ("rope_cache", "rope", 15 * (2 * 2 + 14)),
        ("expand", 15, 12, 2 * (6 + 5)),
        ("out", 15, 2 * 5, 16),
        ("all_reduce", "all_reduce", 2 * 15 * 16, 2),
    ]
    assert isinstance(attend, LatentAttentionOp)
    assert (attend.heads, attend.past_tokens, attend.absorbed, attend.cache) == (2, 7, False, "fp8")
    step = replace(STEP, query_tokens=1)
    decode = sizes(mixers.latent_attention(replace(LATENT, q_rank=None), setting(), step))
    assert [item for item in decode if item[0] != "attend"] == [
        ("down", 3, 16, 14 + 4 * 8),
        ("latent_norm", 3, 12),
        ("rope_cache", "rope", 3 * (4 * 2 + 14)),
        ("absorb_keys", 3 * 4, 4, 6, 12),
        ("absorb_values", 3 * 4, 4, 12, 5),
        ("out", 3, 4 * 5, 16),
    ]
    mixed = replace(STEP, query_tokens=np.array([1, 2]))
    assert any(part.place == "expand" for part in mixers.latent_attention(LATENT, setting(), mixed))


def test_recurrences_on_two_devices() -> None:
    delta = GatedDelta(key_heads=2, value_heads=4, key_size=3, value_size=5, conv=4)
    parts = list(mixers.gated_delta(delta, setting(tp=2), STEP))  # one key head of 3, two value heads of 5
    conv, scan = (next(part.op for part in parts if part.place == place) for place in ("conv", "scan"))
    assert sizes(part for part in parts if part.place not in ("conv", "scan")) == [
        ("in", 15, 16, 2 * 3 + 2 * 10 + 2 * 2),
        ("result_norm", 15 * 2, 5),
        ("out", 15, 10, 16),
        ("all_reduce", "all_reduce", 2 * 15 * 16, 2),
    ]
    assert (conv.in_channels, conv.out_channels, conv.groups, conv.taps, conv.positions) == (16, 16, 16, 4, 5)
    assert (scan.variant, scan.heads, scan.key_size, scan.value_size, scan.groups) == ("gated_delta", 2, 3, 5, 1)
    mamba = Mamba2(heads=4, head_size=6, state_size=7, groups=1, conv=3, bias=True, conv_bias=True)
    parts = list(mixers.mamba2(mamba, setting(tp=2), STEP))  # two heads of 6, the one group on both
    conv, scan = (next(part.op for part in parts if part.place == place) for place in ("conv", "scan"))
    assert sizes(part for part in parts if part.place not in ("conv", "scan")) == [
        ("in", 15, 16, 12 + (12 + 2 * 7) + 2),
        ("result_norm", 15, 12),
        ("out", 15, 12, 16),
        ("all_reduce", "all_reduce", 2 * 15 * 16, 2),
    ]
    assert (conv.in_channels, conv.bias) == (12 + 14, True)
    assert (scan.variant, scan.heads, scan.key_size, scan.value_size, scan.groups) == ("mamba2", 2, 7, 6, 1)


def test_feed_forwards_fused_and_not() -> None:
    down = ("down", 15, 12, 16)
    total = ("all_reduce", "all_reduce", 2 * 15 * 16, 2)
    assert sizes(feed_forward.feed_forward(FFN, setting(tp=2), 15)) == [
        ("gate", 15, 16, 12),
        ("up", 15, 16, 12),
        ("act", "silu", 15 * 12),
        ("mul", "mul", 15 * 12),
        down,
        total,
    ]
    fused = setting(replace(BARE, fused=frozenset({"gate_up", "act_mul"})), tp=2)
    assert sizes(feed_forward.feed_forward(FFN, fused, 15)) == [
        ("gate_up", 15, 16, 24),
        ("act_mul", "silu_mul", 15 * 12),
        down,
        total,
    ]
    plain = feed_forward.feed_forward(replace(FFN, gated=False, activation="relu"), fused, 15)
    assert sizes(plain) == [("up", 15, 16, 12), ("act", "relu", 15 * 12), down, total]


EXPERTS = MixtureOfExperts(
    experts=6, active=4, expert=FeedForward(width=20), shared=FeedForward(width=8), shared_gate=True, latent_size=10
)
MIXED = replace(ARCH, layers=(Layer(attention=ARCH.layers[0].attention, ffn=EXPERTS),) * 2)


def test_a_mixture_with_one_replica_sums_and_with_two_deals_out() -> None:
    """Two devices, one replica: experts of width 10. Two replicas of two, in four groups: two experts each, whole."""
    one = list(feed_forward.mixture(EXPERTS, setting(arch=MIXED, tp=2), 15))
    assert [part.place for part in one] == [
        *("router", "route", "latent_in", "experts", "latent_out"),
        *("shared.gate", "shared.up", "shared.act", "shared.mul", "shared.down"),
        *("shared_gate", "shared_gate", "all_reduce"),
    ]
    assert sizes(one[i] for i in (0, 2, 4, 5, 9, 10, 11)) == [
        ("router", 15, 16, 6),
        ("latent_in", 15, 16, 10),
        ("latent_out", 15, 10, 16),
        ("shared.gate", 15, 16, 4),
        ("shared.down", 15, 4, 16),
        ("shared_gate", 15, 16, 1),
        ("shared_gate", "sigmoid_mul", 15 * 16),
    ]
    assert (one[1].op.tokens, one[1].op.experts, one[1].op.topk) == (15, 6, 4)
    op = one[3].op
    assert (op.tokens, op.d_model, op.width, op.experts, op.local_experts, op.topk) == (15, 10, 10, 6, 6, 4)
    assert (op.weights, one[0].op.weights, one[2].op.weights, op.grouped) == ("int8", "bf16", "fp8", False)
    many = list(feed_forward.mixture(EXPERTS, setting(arch=MIXED, tp=2, dp=2, ep=4), 15))
    op = next(part.op for part in many if part.place == "experts")
    assert (op.tokens, op.width, op.local_experts) == (30, 20, 2)
    exchanged = [("dispatch", "all_to_all", 2 * 15 * 4 * 10, 4), ("combine", "all_to_all", 2 * 15 * 4 * 10, 4)]
    assert sizes(part for part in many if part.place in ("dispatch", "combine")) == exchanged
    assert many[-1].op.collective == "all_reduce"  # of the shared expert
    few = replace(EXPERTS, active=1, shared=None, shared_gate=False, latent_size=None)
    alone = list(feed_forward.mixture(few, setting(arch=MIXED, tp=2, dp=2), 15))
    assert sizes(part for part in alone if part.place == "dispatch") == [("dispatch", "all_to_all", 2 * 15 * 16, 4)]
    assert not any(part.place == "all_reduce" for part in alone)
    assert next(part.op for part in alone if part.place == "experts").width == 5


def test_norms_with_and_without_the_sum() -> None:
    assert sizes(setting().norm(15)) == [("add", "add", 15 * 16), ("norm", 15, 16)]
    (norm,) = setting(replace(BARE, fused=frozenset({"skip_norm"}))).norm(15)
    assert norm.op.skip
    assert (shard(8, 2), shard(1, 4)) == (4, 1)
    assert setting().head_matmul("head", 3, 16, 100).op.weights == "bf16"


def test_counts_multiply_on_the_way_out() -> None:
    part = PlacedOp(place="q", op=Matmul(m=1, k=1, n=1)).inside("attention").inside("layers", 4, 3)
    assert (part.place, part.count, part.owned) == ("layers.attention.q", 4, 3)
    assert PlacedOp(place="q", op=part.op).inside("layers", 4).owned == 4


def test_bytes_that_operators_keep() -> None:
    """Weights in their format with biases in the activations'; FP8 matrices have a scale of 4 bytes."""
    fp8 = resident_bytes(Matmul(m=9, k=32, n=4, weights="fp8", activations="bf16"))
    assert resident_bytes(Matmul(m=9, k=32, n=4, weights="fp8", activations="bf16", bias=True)) == fp8 + 4 * 2
    assert resident_bytes(Matmul(m=1, k=32, n=4, weights="bf16", activations="bf16")) == 32 * 4 * 2
    experts = ExpertsOp(tokens=1, d_model=16, width=8, experts=6, local_experts=3, topk=2, weights="bf16")
    assert resident_bytes(experts) == 3 * 3 * 16 * 8 * 2
    assert resident_bytes(replace(experts, gated=False)) == 3 * 2 * 16 * 8 * 2
    grouped = GroupedMatmul(tokens=9, groups=4, k=3, n=5, weights="bf16")
    assert resident_bytes(grouped) == 4 * 3 * 5 * 2
    assert resident_bytes(EmbeddingOp(rows=100, tokens=3, width=16)) == 100 * 16 * 4
    assert resident_bytes(NormOp(rows=3, width=16, activations="bf16")) == 32
    assert resident_bytes(NormOp(rows=3, width=16, bias=True, activations="bf16")) == 64
    assert resident_bytes(Elementwise(function="add", elements=5)) == 0


def test_bytes_of_caches() -> None:
    op = AttentionOp(batch=3, query_tokens=1, past_tokens=9, heads=4, kv_heads=2, head_size=8, cache="fp8")
    assert cache_bytes(op, 50) == 2 * 3 * 50 * 2 * 8
    assert cache_bytes(replace(op, cache="bf16"), 50) == 2 * 2 * 3 * 50 * 2 * 8
    assert cache_bytes(replace(op, window=20), 50) == 2 * 3 * 20 * 2 * 8
    assert cache_bytes(replace(op, window=80), 50) == 2 * 3 * 50 * 2 * 8
    assert cache_bytes(replace(op, causal=False), 50) == 0
    assert cache_bytes(replace(op, causal=False, cross=True), 50) == 2 * 3 * 9 * 2 * 8
    latent = LatentAttentionOp(
        batch=3,
        query_tokens=1,
        past_tokens=9,
        heads=4,
        kv_rank=12,
        rope_size=2,
        nope_size=6,
        value_size=5,
        cache="bf16",
    )
    assert cache_bytes(latent, 50) == 3 * 50 * 14 * 2
    scan = ScanOp(variant="mamba2", batch=3, query_tokens=1, heads=2, key_size=7, value_size=6)
    assert cache_bytes(scan, 50) == 4 * scan.state_values
    assert cache_bytes(NormOp(rows=1, width=2), 50) == 0


@pytest.mark.parametrize(("pp", "share"), [(1, 1.0), (2, 0.5), (3, 0.5), (4, 0.25)])
def test_the_fullest_stage_of_four_layers(pp: int, share: float) -> None:
    assert stage_share(setting(pp=pp)) == share


def memory_of(found: Setting, tokens: int = 20_000) -> dict[str, float]:
    """Two products a layer and both ends, for one prompt of ``tokens``; the cache of 100 positions twice."""
    parts = (
        PlacedOp(place="embedding", op=EmbeddingOp(rows=100, tokens=tokens, width=16, weights="bf16")),
        PlacedOp(
            place="layers.up",
            op=Matmul(m=tokens, k=16, n=48, weights="bf16", activations="bf16"),
            count=4,
            owned=3,
        ),
        PlacedOp(
            place="layers.attend",
            op=AttentionOp(batch=1, query_tokens=1, past_tokens=1, heads=1, kv_heads=1, head_size=8, cache="bf16"),
            count=4,
            owned=3,
        ),
        PlacedOp(place="head.logits", op=Matmul(m=1, k=16, n=104, weights="bf16", activations="bf16")),
    )
    device = datasheet.load("h100-sxm")
    held = device_memory(found, device, prefill=parts, decode=parts, tokens=100, microbatches=2, rows=1)
    assert held.peak_bytes[0] == sum(held.row(0).values())
    return held.row(0)


def test_the_fullest_device_by_hand() -> None:
    """Three layers own weights; a tied head is the table; a pipeline has the larger end beside half of its layers."""
    table, head, body, cache = 100 * 16 * 2, 16 * 104 * 2, 3 * 16 * 48 * 2, 2 * 4 * (2 * 100 * 8 * 2)
    chunk = 8192  # what a runtime that mixes takes at once
    tied, untied = memory_of(setting()), memory_of(setting(arch=ARCH.with_tied(False)))
    assert tied == {
        "weights": body + table,
        "cache": cache,
        "activations": 2 * chunk * 16 * 2 + chunk * (16 + 48) * 2,
        "runtime": 1e9,
    }
    assert untied["weights"] == body + table + head
    whole = memory_of(setting(replace(BARE, mixes=False)))
    assert whole["activations"] == 2 * 20_000 * 16 * 2 + 20_000 * (16 + 48) * 2
    staged = memory_of(setting(pp=2))
    assert (staged["weights"], staged["cache"]) == (body / 2 + max(table, head), cache / 2)
    still = tuple(replace(layer, attention=replace(layer.attention, rope=False)) for layer in ARCH.layers)
    there = replace(ARCH, layers=still, positions="learned", stem=replace(ARCH.stem, token_types=2, extra_positions=3))
    learned = memory_of(setting(arch=there))
    assert learned["weights"] == body + table + (2 + 64 + 3) * 16 * 2


def test_classes_of_kernels_and_their_sums() -> None:
    """Two products of 3 µs (1 µs of them a launch) and one norm of 5 µs, at least 4 µs of it memory."""
    assert [class_of(kind) for kind in ("matmul", "experts", "mamba2", "p2p", "norm")] == [
        *("matmul", "experts", "attention", "collective", "other")
    ]
    parts = (
        PlacedOp(place="a", op=Matmul(m=1, k=1, n=1), count=2),
        PlacedOp(place="b", op=NormOp(rows=1, width=1)),
    )
    from chipwise.predict.served.kernel_times import FIGURES

    known = {"latency_s": (3.0, 5.0), "launch_s": (1.0, 1.0), "memory_s": (0.5, 4.0), "compute_s": (1.0, 0.0)}
    figures = np.zeros((len(FIGURES), 2, 1))
    for name, values in (known | {"log_halfwidth": (0.1, 0.3)}).items():
        figures[FIGURES.index(name), :, 0] = values
    found = PassTimes.of(parts, figures, ("seen", "unseen"))
    assert (found.kernels, found.latency_s[0], found.class_s("matmul")[0], found.situation) == (3, 11.0, 6.0, "seen")
    assert found.busy_s("matmul", "other")[0] == 2 * 2 + 4
    assert found.busy_s("matmul", "other", scale=0.25)[0] == 2 * 1 + 4  # never under the limits
    assert found.log_halfwidth[0] == pytest.approx((6 * 0.1 + 5 * 0.3) / 11)


@pytest.mark.parametrize(
    ("asked", "plan"), [((8, 1, 8), (8, 1, 8)), ((64, 1, 8), (8, 1, 8)), ((8, 8, 8), (8, 1, 8)), ((4, 1, 2), (4, 1, 2))]
)
def test_plans_that_count_eight_devices_twice(asked: tuple[int, int, int], plan: tuple[int, int, int]) -> None:
    assert node_plan(*asked) == plan


def test_plans_that_divide_nothing() -> None:
    plan = Plan(tp=4, dp=2, ep=2, pp=3)
    assert (plan.stage_devices, plan.devices, plan.expert_tp) == (8, 24, 4)
    for arch, wrong, said in (
        (ARCH, {"tp": 8}, "8 devices do not divide the 4 heads of .*; 1, 2, 4 do"),
        (ARCH, {"ep": 2, "tp": 2}, "no experts to divide"),
        (ARCH, {"pp": 5}, "4 layers, fewer than 5 stages"),
        (MIXED, {"ep": 8, "tp": 8}, "do not divide the 4 heads"),
        (MIXED, {"ep": 8, "dp": 8}, "6 experts, fewer than 8 groups"),
    ):
        with pytest.raises(SpecError, match=said):
            check_plan(arch, Plan(**wrong))
    check_plan(MIXED, Plan(ep=3, dp=6))
    check_plan(ARCH, Plan(pp=4, tp=4))
    with pytest.raises(SpecError, match="do not divide the FFN width 6"):
        check_plan(replace(ARCH, layers=(replace(ARCH.layers[0], ffn=FeedForward(width=6)),)), Plan(tp=4))
    for value in (0, 1025):
        with pytest.raises(SpecError, match="must be from 1 to 1024"):
            Plan(tp=value)
    with pytest.raises(SpecError, match=r"2 groups of experts do not divide 3 devices"):
        Plan(tp=3, ep=2)


def test_backward_products_are_two_of_the_same_size() -> None:
    """(9, 32) times (32, 4): inputs (9, 4)(4, 32), weights (32, 16)(16, 4), 9 tokens padded to 16."""
    attend = AttentionOp(batch=1, query_tokens=2, past_tokens=0, heads=1, kv_heads=1, head_size=4)
    summed = CollectiveOp(collective="all_reduce", payload_bytes=8, devices=2)
    ops = (Matmul(m=9, k=32, n=4, bias=True), attend, NormOp(rows=2, width=4), summed)
    found = list(_backward([PlacedOp(place="x", op=op) for op in ops]))
    assert [(part.op, scale) for part, scale in found] == [
        (Matmul(m=9, k=4, n=32), 1.0),
        (Matmul(m=32, k=16, n=4), 1.0),
        (attend, 2.5),
        (NormOp(rows=2, width=4), 2.0),
        (summed, 1.0),
    ]


def test_what_the_backward_pass_needs() -> None:
    """Inputs of products; queries, keys, values and results of attention, and scores where they leave the chip."""
    product = Matmul(m=9, k=32, n=4, activations="bf16")
    attend = AttentionOp(batch=3, query_tokens=5, past_tokens=2, heads=4, kv_heads=2, head_size=8, activations="bf16")
    width = 15 * (2 * 4 + 2 * 2) * 8
    assert _input_bytes(product) == 9 * 32 * 2
    assert _input_bytes(attend) == width * 2
    assert _input_bytes(replace(attend, fused=False)) == (width + 2 * 3 * 4 * 5 * 7) * 2
    norm = NormOp(rows=9, width=16, activations="bf16")
    assert _input_bytes(norm) == norm.work().read_bytes
    assert _input_bytes(EmbeddingOp(rows=1, tokens=1, width=1)) == 0
    start = EmbeddingOp(rows=100, tokens=9, width=16, weights="bf16")
    stream = float(start.work().write_bytes)
    parts = [
        PlacedOp(place="embedding", op=start),
        PlacedOp(place="layers.a", op=product, count=4),
        PlacedOp(place="layers.b", op=attend, count=4),
        PlacedOp(place="layers-2.a", op=product, count=2),
        PlacedOp(place="head", op=product, count=3),
    ]
    ends, inside, other = 3 * 9 * 32 * 2, 9 * 32 * 2 + 2 * width, 9 * 32 * 2
    assert _kept_bytes(parts, checkpoint=False) == ends + 4 * inside + 2 * other
    assert _kept_bytes(parts, checkpoint=True) == ends + stream * 6 + inside


def test_parameters_of_operators() -> None:
    assert resident_parameters(Matmul(m=9, k=32, n=4, bias=True)) == 32 * 4 + 4
    assert resident_parameters(Matmul(m=9, k=32, n=4)) == 32 * 4
    experts = ExpertsOp(tokens=1, d_model=16, width=8, experts=6, local_experts=3, topk=2)
    assert resident_parameters(experts) == 3 * 3 * 16 * 8
    assert resident_parameters(replace(experts, gated=False)) == 3 * 2 * 16 * 8
    assert (
        resident_parameters(NormOp(rows=9, width=16)),
        resident_parameters(NormOp(rows=9, width=16, bias=True)),
    ) == (
        16,
        32,
    )
    table = EmbeddingOp(rows=100, tokens=3, width=16, weights="bf16", activations="bf16")
    assert resident_parameters(table) == 1600
    assert resident_parameters(Elementwise(function="add", elements=5)) == 0


def test_gradients_are_summed_in_16_bits_beside_the_backward_pass() -> None:
    whole = seconds_of("all_reduce")
    assert exposed(zero=0) == pytest.approx(whole)
    assert exposed(zero=0, backward_s=0.4 * whole) == pytest.approx(0.6 * whole)
    assert exposed(zero=0, backward_s=2 * whole) == 0.0
    assert exposed(zero=0, dp=1) == 0.0


def seconds_of(collective: Any) -> float:
    op = CollectiveOp(collective=collective, payload_bytes=2e9, devices=4)
    return float(np.max(times_of(op, datasheet.load("h100-sxm"), stack="vllm").latency_s))


def exposed(*, zero: int, dp: int = 4, microbatches: int = 1, forward_s: float = 0.0, backward_s: float = 0.0) -> float:
    """Seconds of communication of 1e9 parameters beside passes of so many seconds."""
    return communication_s(
        1e9, Plan(dp=dp), datasheet.load("h100-sxm"), stack="vllm", zero=zero, microbatches=microbatches,
        forward_s=forward_s, backward_s=backward_s,
    )  # fmt: skip


def test_what_zeros_stages_send_and_hide() -> None:
    """Gather and scatter once, or both for every microbatch; what passes hide does not count, a last gather does."""
    gather, scatter = seconds_of("all_gather"), seconds_of("reduce_scatter")
    assert exposed(zero=1, microbatches=4) == pytest.approx(scatter + gather)
    assert exposed(zero=2, microbatches=4) == pytest.approx(4 * scatter + gather)
    assert exposed(zero=3, microbatches=4) == pytest.approx(8 * gather + 4 * scatter)
    assert exposed(zero=2, backward_s=10.0) == pytest.approx(gather)
    assert exposed(zero=3, forward_s=10.0) == pytest.approx(gather + scatter)
    assert exposed(zero=3, forward_s=10.0, backward_s=10.0) == 0.0


@pytest.mark.parametrize(("zero", "gigabytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_states_of_zeros_stages_are_those_of_its_paper(zero: int, gigabytes: float) -> None:
    """Figure 1 of arXiv:1910.02054: 7.5 billion parameters on 64 devices."""
    assert states_bytes(7.5e9, zero, 64) / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_fsdp_holds_two_layers_and_what_is_outside_them() -> None:
    """Ten layers of 100 parameters and 50 outside: 2 x (50 + 200) of weights and 2 x 100 of gradients."""
    assert gathered_bytes(1000.0, 10, 1050.0) == 2 * 250 + 2 * 100
    assert gathered_bytes(100.0, 1, 150.0) == 2 * 150 + 2 * 100


def test_a_step_with_sharded_states_updates_its_share() -> None:
    whole, shared = (training(dp=2, zero=zero) for zero in (0, 3))
    assert shared.optimiser_s == pytest.approx(whole.optimiser_s / 2)
    assert shared.memory_bytes["states"] == pytest.approx(whole.memory_bytes["states"] / 2)
    assert shared.forward_s == whole.forward_s
    assert 0 < shared.memory_bytes["gathered"] < whole.memory_bytes["states"] / 8
    for zero, plan, said in ((4, {}, "from 0"), (1, {"ep": 2}, "sharding of states is not supported")):
        with pytest.raises(SpecError, match=said):
            check_stage(zero, Plan(dp=2, **plan))


def training(batch: int = 8, microbatches: int = 4, *, checkpoint: bool = False, zero: int = 0, **plan: int) -> Any:
    found = resolved(Request(model="gpt2", deployment=Deployment(device="h100-sxm", runtime="torch-compile"))).setting
    found = replace(found, plan=Plan(**plan))
    device = datasheet.load("h100-sxm")
    return training_step(
        found, device, batch=batch, tokens=128, microbatches=microbatches, checkpoint=checkpoint, zero=zero
    )


def test_a_pipelines_step_is_its_share_of_the_passes_and_the_bubble() -> None:
    """Four microbatches over two stages: half of all passes each, and one microbatch's half spent waiting."""
    one, two = training(), training(pp=2)
    parts = one.forward_s + one.backward_s
    assert one.step.value == pytest.approx(parts + one.optimiser_s)
    assert (one.recompute_s, one.communication_s) == (0, 0)
    assert two.step.value == pytest.approx(two.forward_s + two.backward_s + two.optimiser_s + two.communication_s)
    assert two.communication_s == pytest.approx((two.forward_s + two.backward_s) / 4)
    kept = one.memory_bytes["activations"]
    assert kept == pytest.approx(two.memory_bytes["activations"])  # two microbatches of half the layers
    assert training(8, 8).memory_bytes["activations"] == pytest.approx(kept / 2, rel=0.01)
    assert one.tokens_per_s == pytest.approx(8 * 128 / one.step.value)
    again = training(checkpoint=True)
    assert 0.5 * one.forward_s < again.recompute_s < one.forward_s
    assert again.step.value == pytest.approx(parts + again.recompute_s + again.optimiser_s)


def test_adam_moves_thirty_bytes_a_parameter_at_the_rate_of_streams() -> None:
    one, device = training(), datasheet.load("h100-sxm")
    parameters = one.memory_bytes["states"] / 16
    assert one.optimiser_s == pytest.approx(30 * parameters / (SHARE * device.mem_bandwidth_bytes_per_s))
    last = one.operators[-1]
    assert (last.place, last.work) == ("optimiser", Work(flops=0, read_bytes=round(30 * parameters), write_bytes=0))
    assert last.memory_s == pytest.approx(30 * parameters / device.mem_bandwidth_bytes_per_s)
    total = sum(cost.latency_s for cost in one.operators)
    assert total == pytest.approx(one.step.value)
    assert sum(cost.launch_s or 0.0 for cost in one.operators) > 0
    assert one.peak_memory_bytes == sum(one.memory_bytes.values())
    assert one.step.high / one.step.value == pytest.approx(one.step.value / one.step.low)
    assert one.step.high > 1.01 * one.step.value
    assert [row["part"] for row in one.rows()] == [
        *("step", "forward", "backward", "recompute", "optimiser", "communication")
    ]
    assert one.headline().startswith("h100-sxm, training: ")
    assert training(8, 2, dp=2).headline().startswith("2 x h100-sxm")
    for wrong, field in (({"batch": 0}, "batch"), ({"microbatches": 2**40}, "microbatches"), ({"batch": 7}, "batch")):
        with pytest.raises(SpecError, match=field):
            training(**wrong)


def test_formats_of_training_are_wide() -> None:
    with pytest.raises(SpecError, match=r"weights: must be bf16, fp16 or fp32 for training, not fp8"):
        training_step(setting(), datasheet.load("h100-sxm"), batch=1, tokens=8)


def test_convolutions_over_sound_are_products_from_64_values_of_a_filter_on() -> None:
    """Of 3 bands, 7 frames a second for 4 s: 28, 14 and 7 frames of 16, 8 and 8 values. Filters hold 9, 64, 24."""
    convs = (
        SoundConv(channels=16, kernel=3, pad=1),
        SoundConv(channels=8, kernel=4, stride=2, pad=1, norm="layer", activation="none"),
        SoundConv(channels=8, kernel=3, stride=2, pad=1, activation="relu"),
    )
    block = SoundStem(seconds=4.0, rate=7.0, channels=3, convs=convs)
    found = list(sound.frames(block, setting(), 5))
    direct = [part for part in found if isinstance(part.op, ConvOp)]
    assert [(part.place, part.op.positions, part.op.in_channels, part.op.out_channels) for part in direct] == [
        ("stem.convs.0", 28, 3, 16),
        ("stem.convs.2", 7, 8, 8),
    ]
    assert sizes(part for part in found if not isinstance(part.op, ConvOp))[:4] == [
        ("stem.activations.0", "gelu", 5 * 28 * 16),
        ("stem.convs.1", 5 * 14, 16 * 4, 8),
        ("stem.norms.1", 5 * 14, 8),
        ("stem.activations.2", "relu", 5 * 7 * 8),
    ]
