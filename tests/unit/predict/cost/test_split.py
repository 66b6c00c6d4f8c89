"""Which part of an operator streams and which computes, and what the caches of short convolutions take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chipwise.model.arch.arch import uniform
from chipwise.model.arch.design import Design
from chipwise.model.ops.graph import OpGraph, Placed
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.workload import Phase, Workload
from chipwise.predict.cost.estimate import operator_costs
from chipwise.predict.cost.memory import memory_parts
from chipwise.predict.cost.model import Bound
from support.machines import round_machine

NS = 1e-9


def test_a_matrix_is_streamed_at_the_fastest_caches_rate_while_it_computes_and_the_rest_is_memory() -> None:
    """(64, 32) times (32, 32) in FP32: 4,096 bytes of weights, in DRAM at 3 ns a byte, in the fastest cache at 1 ns.

    Of the 12,288 ns of streaming 4,096 are computing, 8,192 memory. 2,048 values in, 2,048 out and 65,536 products at
    1 ns each compute as well. The pass doubles all.
    """
    graph = OpGraph(phase=Phase.PREFILL, ops=(Placed(place="x", op=Matmul(m=64, k=32, n=32)),))
    (cost,) = operator_costs(graph, round_machine(), logits=0)
    assert cost.memory_s == pytest.approx(2 * 8_192 * NS)
    assert cost.compute_s == pytest.approx(2 * (2_048 + 2_048 + 65_536 + 4_096) * NS)
    assert cost.bound is Bound.COMPUTE


def test_a_vector_streams_all_of_its_matrix() -> None:
    """(1, 32) times (32, 32): 4,096 bytes at 3 ns are memory; 32 in and 32 out compute."""
    graph = OpGraph(phase=Phase.DECODE, ops=(Placed(place="x", op=Matmul(m=1, k=32, n=32)),))
    (cost,) = operator_costs(graph, round_machine(), logits=0)
    assert cost.memory_s == pytest.approx(2 * 12_288 * NS)
    assert cost.bound is Bound.MEMORY


def test_a_short_convolution_keeps_its_last_inputs_in_fp32() -> None:
    """Four taps keep three inputs of 64 values: two layers, three sequences, four bytes a value."""
    plain = uniform(depth=2, d_model=64, heads=4, kv_heads=4, ffn_width=128, vocab_size=100, max_tokens=32)
    layers = tuple(replace(layer, attention_conv=4) for layer in plain.layers)
    before, after = (
        memory_parts(Design(arch=arch), Workload(prompt_tokens=4, new_tokens=4, batch=3))
        for arch in (plain, replace(plain, layers=layers))
    )
    assert after.kv_bytes - before.kv_bytes == 2 * 3 * 4 * (3 * 64)
