"""Prices by column, parts of a pass, memory and the residual of whole models: all by pencil, on round numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from chipwise.hardware.device import CheckError, Curve, Residual
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.ends import LmHead, Tokens
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.graph import OpGraph, Placed
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.ranking import RequestAttentionOp
from chipwise.model.ops.work import Work
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower
from chipwise.predict.cost.estimate import estimate, interval, operator_costs
from chipwise.predict.cost.memory import block_activation_bytes, block_kv_bytes, block_vector_parameters, memory_parts
from chipwise.predict.cost.model import Bound, CostEstimate, OpCost, Predicted, passes, text
from chipwise.predict.cost.pricing import (
    PARTS,
    PRICE_COLUMNS,
    anatomy,
    combine,
    op_price,
    s_per_byte,
    total_price,
    working_set_bytes,
)
from chipwise.predict.cost.request import request_total
from chipwise.predict.cost.residual import AMPLITUDE, NOISE, REACH, SCALES, doubt, factors, smooth
from support.machines import US, round_machine

NS = 1e-9
MATRIX = Matmul(m=2, k=64, n=16, weights="int8", bias=True)
"""A node of 1 µs; (128 in + 32 out + 2,048 products) ns; 64·16 bytes and 16 scales of 4 stream: 1,088."""
ATTEND = AttentionOp(batch=1, query_tokens=1, past_tokens=3, heads=2, kv_heads=1, head_size=16)


def columns(price: np.ndarray) -> dict[str, float]:
    """A price by the names of its columns, where it is not zero."""
    return {name: value for name, value in zip(PRICE_COLUMNS, price.tolist(), strict=True) if value}


def test_every_column_of_a_price() -> None:
    work_s = (128 + 32 + 2048) * NS
    assert columns(op_price(MATRIX, round_machine())) == pytest.approx(
        {
            "fixed_s": US + work_s,
            "matmul.int8.matrix": 1088,
            "node_s": US,
            "matmul.int8.matrix_s": work_s,
            "nodes": 1,
        }
    )
    attention_s = (2 + 8 + 128 + 64 + 48) * NS
    assert columns(op_price(ATTEND, round_machine())) == pytest.approx(
        {"fixed_s": US + attention_s, "resident_bytes": 512, "node_s": US, "attention_s": attention_s, "nodes": 1}
    )
    biased = op_price(Matmul(m=1, k=64, n=16, bias=True), round_machine())
    assert columns(biased) == pytest.approx(
        {
            "fixed_s": 2 * US + (64 + 16 + 16) * NS,
            "matmul.fp32.vector": 64 * 16 * 4,
            "node_s": 2 * US,
            "matmul.fp32.vector_s": 80 * NS,
            "other_s": 16 * NS,
            "nodes": 2,
        }
    )
    assert columns(op_price(NormOp(rows=1, width=8), round_machine()))["norm_s"] == pytest.approx(9 * NS)


@pytest.mark.parametrize(("pointwise", "part"), [(True, "pointwise_s"), (False, "attention_s")])
def test_attention_without_a_softmax_is_a_part_of_its_own(pointwise, part) -> None:
    """Its nodes are others, so whole models may correct them by another factor. 2 heads of 4 queries over 2 + 1 keys:
    24 scores at 1 ns."""
    machine = round_machine()
    rates = {f"attention.{kind}.whole": {"node": US, "score": NS} for kind in ("pointwise", "softmax")}
    op = RequestAttentionOp(batch=1, history=2, candidates=2, heads=2, head_size=8, pointwise=pointwise)
    price = columns(op_price(op, replace(machine, terms={**machine.terms, **rates})))
    assert price == pytest.approx({"fixed_s": US + 24 * NS, "node_s": US, part: 24 * NS, "nodes": 1})


def test_a_rate_that_depends_on_the_nodes_is_counted_once() -> None:
    """A node at 3 µs: the launch is 3 µs, and so is all of the time that does not come from other features."""
    machine = round_machine()
    terms = {**machine.terms, "norm.layernorm": {"node": 3 * US, "row": 0.0, "value": 0.0}}
    price = columns(op_price(NormOp(rows=2, width=8, norm="layernorm"), replace(machine, terms=terms)))
    assert price == pytest.approx({"fixed_s": 3 * US, "node_s": 3 * US, "nodes": 1})


def test_the_working_set_is_what_streams_and_what_stays() -> None:
    both = total_price([MATRIX, ATTEND], round_machine())
    assert float(working_set_bytes(both)) == 1088 + 512


def test_a_curve_is_straight_over_the_logarithm_of_the_working_set() -> None:
    curve = Curve(working_set_bytes=(1024.0, 4096.0), s_per_byte=(1.0, 3.0))
    assert s_per_byte(curve, np.array([0, 1, 1024, 2048, 4096, 1e9])).tolist() == [1, 1, 1, 2, 3, 3]


def test_the_parts_of_a_pass_and_its_figures() -> None:
    """1,600 bytes in all: log2(1600 / 1024) / 2 of the way from 1 to 3 ns a byte. Twice all, a call, 7 logits."""
    price = total_price([MATRIX, ATTEND], round_machine())
    parts, figures = anatomy(price, round_machine(), Phase.DECODE, logits=7)
    byte_s = (1 + math.log2(1600 / 1024)) * NS
    expected = dict.fromkeys(PARTS, 0.0) | {
        "node": 2 * 2 * US,
        "attention": 2 * 250 * NS,
        "matmul.int8.matrix": 2 * (2208 * NS + 1088 * byte_s),
        "call": 10 * US,
        "logits": 7 * NS,
    }
    assert dict(zip(PARTS, parts.tolist(), strict=True)) == pytest.approx(expected)
    total = sum(expected.values())
    assert figures.tolist() == pytest.approx([math.log(total), math.log(1600), math.log(2), math.log(7), 1, 0])
    assert float(combine(price, round_machine(), Phase.DECODE, logits=7)) == pytest.approx(total)


def test_shares_of_formats_in_the_streamed_bytes() -> None:
    """FP32 256, int8 80, int4 (half a byte and a scale of 32 bits for 32 values) 64·4/2 + 2·4·4 = 160 bytes."""
    ops = [Matmul(m=1, k=16, n=4), Matmul(m=1, k=16, n=4, weights="int8"), Matmul(m=1, k=64, n=4, weights="int4")]
    _, figures = anatomy(total_price(ops, round_machine()), round_machine(), Phase.DECODE, logits=1)
    assert figures[4:].tolist() == pytest.approx([80 / 496, 160 / 496])
    assert figures[1] == pytest.approx(math.log(496))


def test_factors_of_parts_and_the_smooth_residual() -> None:
    """Parts 1 and 3 with factors 2 and 1: (2 + 3) / 4. One point of weight w: exp(w · AMPLITUDE²) there."""
    parts, here = np.array([1.0, 3.0]), np.zeros(6)
    assert float(factors(parts, here, Residual(scales={"a": 2.0}), ("a", "b"))) == pytest.approx(5 / 4)
    one = Residual(scales={}, points=((0.0,) * 6,), weights=(10.0,))
    assert float(factors(parts, here, one, ("a", "b"))) == pytest.approx(math.exp(10 * AMPLITUDE**2))
    assert (SCALES, REACH) == ((0.6, 0.8, 0.5, 0.7, 0.4, 0.4), 4.0)  # fitted together; profiles that exist rest on them
    away = np.array([SCALES[0] * REACH, 0, 0, 0, 0, 0])  # one spread of distance over all figures
    expected = math.exp(10 * AMPLITUDE**2 * math.exp(-0.5))
    assert float(factors(parts, away, one, ("a", "b"))) == pytest.approx(expected)
    both = np.array([SCALES[0] * REACH, 0, 0, 0, 0, SCALES[5] * REACH])
    assert float(factors(parts, both, one, ("a", "b"))) == pytest.approx(math.exp(10 * AMPLITUDE**2 * math.exp(-1)))


def test_weights_and_doubt_of_one_measured_model() -> None:
    """One point: weight = log / (A² + N²), so the prediction there is A² / (A² + N²) of the log; the doubt shrinks."""
    known = AMPLITUDE**2 / (AMPLITUDE**2 + NOISE**2)
    points = np.zeros((1, 6))
    weights = smooth(points, np.array([0.1]))
    assert weights.tolist() == pytest.approx([0.1 / (AMPLITUDE**2 + NOISE**2)])
    residual = Residual(scales={}, points=((0.0,) * 6,), weights=tuple(weights.tolist()))
    assert doubt(points, residual).tolist() == pytest.approx([AMPLITUDE * math.sqrt(1 - known)])
    assert doubt(np.full((1, 6), 1e6), residual).tolist() == pytest.approx([AMPLITUDE])
    assert doubt(points, Residual(scales={})).tolist() == [AMPLITUDE]


def graph(*ops: object) -> OpGraph:
    return OpGraph(phase=Phase.DECODE, ops=tuple(Placed(place=f"layers.0.{i}", op=op) for i, op in enumerate(ops)))  # type: ignore[arg-type]


def test_the_parts_of_operators_follow_scale_and_residual() -> None:
    """Everything twice (the pass's scale), and again by the factor that the residual gives the whole pass."""
    machine = round_machine()
    (matrix, attend) = operator_costs(graph(MATRIX, ATTEND), machine, logits=7)
    assert attend.latency_s == pytest.approx(2 * (US + 250 * NS))
    assert (attend.launch_s, attend.compute_s, attend.memory_s) == pytest.approx((2 * US, 2 * 250 * NS, 0))
    byte_s = (1 + math.log2(1600 / 1024)) * NS
    # Intensity: 2·2·64·16 FLOPs over 1,088 + 640 bytes is below 4, so all of its streaming is memory.
    assert matrix.memory_s == pytest.approx(2 * 1088 * byte_s)
    assert matrix.compute_s == pytest.approx(2 * 2208 * NS)
    assert matrix.latency_s == pytest.approx(2 * (US + 2208 * NS + 1088 * byte_s))
    assert (matrix.bound, attend.bound) == (Bound.COMPUTE, Bound.LAUNCH)
    slower = replace(machine, residuals={"decode": Residual(scales=dict.fromkeys(PARTS, 1.5))})
    again = operator_costs(graph(MATRIX, ATTEND), slower, logits=7)
    assert [cost.latency_s for cost in again] == pytest.approx([1.5 * matrix.latency_s, 1.5 * attend.latency_s])


def test_streaming_at_the_fastest_rate_is_computing_where_weights_are_used_often() -> None:
    """64 rows over 64·64 FP32 weights: 16,384 bytes at 3 ns, of which 1 ns a byte is what the fastest cache takes."""
    (cost,) = operator_costs(graph(Matmul(m=64, k=64, n=64)), round_machine(), logits=1)
    assert cost.memory_s == pytest.approx(2 * 16_384 * 2 * NS)
    assert cost.compute_s == pytest.approx(2 * (16_384 + (64 * 64 * 2 + 64**3)) * NS)
    assert cost.latency_s == pytest.approx(cost.launch_s + cost.compute_s + cost.memory_s)


def test_nine_in_ten_of_a_log_normal_error() -> None:
    found = interval(3.0, CheckError(models=1, mape=0.1, spread=0.2))
    assert math.log(found.high / 3.0) == pytest.approx(1.645 * 0.2, rel=1e-3)
    assert found.low == pytest.approx(9.0 / found.high)


HEADS = Attention(heads=4, kv_heads=2, head_size=8, qkv_bias=True, out_bias=True, qk_norm=True)
GATED, PLAIN = FeedForward(width=24, bias=True), FeedForward(width=24, gated=False)
REQUEST = Workload(prompt_tokens=5, new_tokens=7, batch=3)


def test_memory_of_blocks_by_hand() -> None:
    """Queries 32 wide, keys and values 16 each; a cache of 12 positions; prompts of 5 in batches of 3."""
    assert block_kv_bytes(HEADS, REQUEST) == 2 * 3 * 12 * 16 * 4
    assert block_kv_bytes(GATED, REQUEST) == 0
    assert block_vector_parameters(HEADS, 16) == (32 + 2 * 16) + 16 + 2 * 8
    assert block_vector_parameters(GATED, 16) == 24 + 24 + 16
    assert block_vector_parameters(PLAIN, 16) == 0
    stream = 2 * 15 * 16
    assert block_activation_bytes(HEADS, 16, REQUEST) == 4 * (15 * (2 * 32 + 2 * 16) + 3 * 4 * 5 * 12 + stream)
    assert block_activation_bytes(GATED, 16, REQUEST) == 4 * (15 * 24 * 3 + stream)
    assert block_activation_bytes(PLAIN, 16, REQUEST) == 4 * (15 * 24 * 2 + stream)


def test_memory_of_a_model_by_hand() -> None:
    """Two layers, the second with the first's weights and a convolution of 3 taps before its attention.

    FP32 tables: 20·16 tokens, the final norm 16, two norms of 16 and the blocks' vectors of one layer.
    """
    layer = Layer(attention=HEADS, ffn=GATED, attention_conv=3)
    arch = ArchSpec(stem=Tokens(vocab_size=20), d_model=16, layers=(layer, replace(layer, shares=0)))
    parts = memory_parts(Design(arch=arch), REQUEST)
    assert parts.table_bytes == 4 * (320 + 16 + 2 * 16 + 3 * 16 + (64 + 16 + 16) + (24 + 24 + 16))
    assert parts.matrices == {"fp32": 4 * (16 * (32 + 32) + 32 * 16 + 3 * 16 * 24)}
    assert parts.kv_bytes == 2 * (2 * 3 * 12 * 16 * 4) + 2 * (4 * 3 * 2 * 16)
    assert parts.activation_bytes == 4 * (15 * 96 + 3 * 4 * 5 * 12 + 480)
    machine = round_machine()
    expected = 1e6 + parts.table_bytes + 2 * parts.matrix_bytes + parts.kv_bytes + parts.activation_bytes
    assert parts.peak_bytes(machine.memory) == expected
    workload = REQUEST
    graphs = [lower(Design(arch=arch), workload, phase) for phase in (Phase.PREFILL, Phase.DECODE)]
    found = estimate(Design(arch=arch), *graphs, workload, machine)
    assert found.peak_memory_bytes == expected
    assert found.metric("ttft_p99").value == pytest.approx(1.5 * found.ttft_s)


def test_an_untied_head_is_stored_in_its_own_format() -> None:
    arch = ArchSpec(
        stem=Tokens(vocab_size=20), head=LmHead(tied=False), d_model=16, layers=(Layer(attention=None, ffn=PLAIN),)
    )
    assert memory_parts(Design(arch=arch), REQUEST).matrices == {"fp32": 4 * (20 * 16 + 2 * 16 * 24)}
    mixed = memory_parts(Design(arch=arch, weights="fp32 head:int8"), REQUEST).matrices
    assert mixed == {"fp32": 4 * 2 * 16 * 24, "int8": 20 * 16 + 20 * 4}
    tied = memory_parts(Design(arch=arch.with_tied(True)), REQUEST).matrices
    assert tied == {"fp32": 4 * 2 * 16 * 24}


def cost(place: str, seconds: float, count: int = 1) -> OpCost:
    return OpCost(place=place, kind="matmul", latency_s=seconds, bound=Bound.MEMORY, work=Work(flops=1), count=count)


def test_a_request_is_one_prompt_and_a_step_for_each_token_after_the_first() -> None:
    """100 ms of prompt and 10 ms a step: 1 token 100 ms, 2 tokens 110 ms, 11 tokens 200 ms."""
    assert [request_total(100, 10, n) for n in (1, 2, 11)] == [100, 110, 200]


def test_an_operator_counts_once_unless_told_otherwise() -> None:
    assert OpCost(place="head", kind="matmul", latency_s=1.0, bound=Bound.MEMORY, work=Work(flops=1)).count == 1


def test_the_tree_of_a_pass() -> None:
    """Groups by the first part of the place, shares of the pass's kernels, counts where there are several."""
    found = CostEstimate(
        ttft_s=3e-3,
        tpot_s=1e-3,
        peak_memory_bytes=2e9,
        metrics={},
        prefill=(),
        decode=(cost("layers.q", 3e-4, 2), cost("layers.k", 1e-4), cost("head", 4e-4)),
        model="m",
        device="l4",
        runtime="vllm",
        devices=2,
        notes=("one",),
    )
    lines = text(found).splitlines()
    assert lines[0] == "2 x l4, vllm: TTFT 3 ms, TPOT 1 ms, 2 GB: predicted"
    assert lines[1] == "decode step: kernels 800 µs"
    assert [line.split() for line in lines[2:]] == [
        ["├──", "layers", "400", "µs", "50", "%"],
        ["│", "├──", "q", "300", "µs", "37.5", "%", "memory", "x2"],
        ["│", "└──", "k", "100", "µs", "12.5", "%", "memory"],
        ["└──", "head", "400", "µs", "50", "%"],
        ["└──", "head", "400", "µs", "50", "%", "memory"],
        ["note:", "one"],
    ]
    alone = replace(found, devices=1, prefill=found.decode, decode=())
    assert text(alone).startswith("l4, vllm: TTFT 3 ms, 2 GB")
    assert "the pass: kernels" in text(alone)


def test_the_smooth_residual_of_two_models_by_hand() -> None:
    """Two points so far apart in one figure that they say e^-½ of each other: a 2 by 2 system, solved by Cramer.

    On the diagonal a = A² + N², beside it b = A² e^-½.
    """
    apart = np.array([[0.0] * 6, [REACH * SCALES[0]] + [0.0] * 5])
    a, b = AMPLITUDE**2 + NOISE**2, AMPLITUDE**2 * math.exp(-0.5)
    weights = smooth(apart, np.array([0.1, -0.2]))
    assert weights.tolist() == pytest.approx(
        [(0.1 * a + 0.2 * b) / (a**2 - b**2), (-0.2 * a - 0.1 * b) / (a**2 - b**2)]
    )
    residual = Residual(scales={}, points=tuple(map(tuple, apart.tolist())), weights=tuple(weights.tolist()))
    said = math.log(float(factors(np.array([1.0]), apart[0], residual, ("a",))))
    assert said == pytest.approx(AMPLITUDE**2 * (weights[0] + math.exp(-0.5) * weights[1]))
    near = np.array([AMPLITUDE**2, b])
    known = near @ np.linalg.inv([[a, b], [b, a]]) @ near
    assert doubt(apart[:1], residual).tolist() == pytest.approx([math.sqrt(AMPLITUDE**2 - known)])


def test_a_pass_of_nothing_and_of_one_byte_has_figures_all_the_same() -> None:
    price = np.zeros((2, len(PRICE_COLUMNS)))
    price[1, PRICE_COLUMNS.index("matmul.int4.vector")] = price[1, -1] = 1.0
    _, figures = anatomy(price, round_machine(), Phase.DECODE, logits=0)
    assert figures[:, 1:].tolist() == [[0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]]
    assert figures[0, 0] == pytest.approx(math.log(10 * US))


def test_an_interval_within_a_factor() -> None:
    found = Predicted.around(3.0, math.log(2.0))
    assert (found.low, found.high, found.log_halfwidth) == pytest.approx((1.5, 6.0, math.log(2.0)))
    bare = Predicted.around(3.0, None)
    assert (bare.value, bare.low, bare.high, bare.log_halfwidth) == (3.0, None, None, None)


def test_the_headline_and_the_rows_of_an_estimate() -> None:
    found = CostEstimate(
        ttft_s=3e-3,
        tpot_s=0.0,
        peak_memory_bytes=2e9,
        metrics={"ttft_p50": Predicted(value=3e-3, low=2e-3, high=4e-3), "peak_memory": Predicted(value=2e9)},
        prefill=(),
        decode=(),
        model="m",
        device="l4",
        runtime="vllm",
    )
    assert found.headline() == "l4, vllm: TTFT 3 ms; predicted"
    assert replace(found, devices=3, tpot_s=1e-3).headline() == "3 x l4, vllm: TTFT 3 ms, TPOT 1 ms; predicted"
    assert found.rows() == [
        {"metric": "ttft_p50", "value": 3e-3, "low": 2e-3, "high": 4e-3},
        {"metric": "peak_memory", "value": 2e9, "low": None, "high": None},
    ]
    assert list(passes(found)) == []


def test_nothing_is_doubted_unless_told() -> None:
    assert OpCost(place="a", kind="b", latency_s=1.0, bound=Bound.LINK, work=Work(flops=1)).doubt == 0.0
