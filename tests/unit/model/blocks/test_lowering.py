"""A whole model as operators, against a pencil and against its own parameters."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chipwise.api.testing.specs import toy_arch
from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.model.arch.design import Design
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.published.read import resolve
from chipwise.model.walk.lower import lower
from support.models import arch_specs

REQUEST = Workload(prompt_tokens=10, new_tokens=4)


def matrix_parameters(arch: ArchSpec) -> int:
    """Values in all matrices that a pass multiplies by: shared ones each time, the table as head."""
    total = arch.vocab_size * arch.d_model
    for layer in arch.layers:
        if (a := layer.attention) is not None:
            total += arch.d_model * (2 * a.query_width + 2 * a.kv_width)
        if (f := layer.ffn) is not None:
            total += arch.d_model * f.width * (3 if f.gated else 2) // f.groups
    return total


@given(arch_specs(), st.integers(1, 5))
@settings(deadline=None, derandomize=True)
def test_decode_multiplies_by_every_matrix_once(arch: ArchSpec, batch: int) -> None:
    workload = Workload(prompt_tokens=3, new_tokens=2, batch=batch)
    products = [p.op for p in lower(Design(arch=arch), workload, Phase.DECODE) if isinstance(p.op, Matmul)]
    assert sum(op.k * op.n for op in products) == matrix_parameters(arch)
    assert {op.m for op in products} == {batch}


def test_llama_3_8b_reads_15_gb_a_token_in_fp16() -> None:
    """All parameters but the token table are read each step: (8,030,261,248 - 128,256·4096)·2 bytes, norms in FP32.

    Three FP32 rows are gathered: the token's, and those of the last position before the last output projection.
    """
    arch = resolve("Llama-3-8B")
    work = lower(Design(arch=arch, weights="fp16"), Workload(), Phase.DECODE).work()
    norms = 65 * 4096
    assert work.weight_bytes == 2 * (arch.parameters() - 128_256 * 4096 - norms) + 4 * norms + 3 * 4 * 4096
    assert 2 * matrix_parameters(arch) == pytest.approx(work.flops, rel=0.005)


@given(arch_specs())
@settings(deadline=None, derandomize=True)
def test_places_are_unique_and_name_the_blocks(arch: ArchSpec) -> None:
    places = [placed.place for placed in lower(Design(arch=arch), REQUEST, Phase.PREFILL)]
    assert len(set(places)) == len(places)
    assert places[0].startswith("embedding.")
    assert places[-2:] == ["norm", "head"] if arch.final_norm else places[-1] == "head"
    for i, layer in enumerate(arch.layers):
        assert (layer.attention is not None) == any(p.startswith(f"layers.{i}.attention.") for p in places)
        assert (layer.ffn is not None) == any(p.startswith(f"layers.{i}.ffn.") for p in places)


def test_prefill_of_the_last_position_leaves_out_what_nobody_asks_for() -> None:
    """After the last attention only one position per sequence is computed: out, FFN, norm and head have one row."""
    graph = lower(Design(arch=toy_arch()), REQUEST, Phase.PREFILL)
    rows = {placed.place: placed.op.m for placed in graph if isinstance(placed.op, Matmul)}
    assert rows["layers.0.ffn.up"] == rows["layers.1.attention.qkv"] == 10
    assert rows["layers.1.attention.out"] == rows["layers.1.ffn.up"] == rows["head"] == 1
    everything = lower(Design(arch=toy_arch()), REQUEST, Phase.PREFILL, logits="all")
    assert {placed.op.m for placed in everything if isinstance(placed.op, Matmul)} == {10}


def test_without_attention_positions_never_meet() -> None:
    arch = toy_arch(layers=(Layer(attention=None, ffn=FeedForward(width=8)),))
    graph = lower(Design(arch=arch), REQUEST, Phase.PREFILL)
    assert {placed.op.m for placed in graph if isinstance(placed.op, Matmul)} == {1}


def test_every_norm_but_the_first_adds_the_residual() -> None:
    norms = [p.op for p in lower(Design(arch=toy_arch()), REQUEST, Phase.DECODE) if isinstance(p.op, NormOp)]
    assert [op.skip for op in norms] == [False, True, True, True, True]


def test_decode_attends_to_the_middle_of_the_answer() -> None:
    graph = lower(Design(arch=toy_arch()), REQUEST, Phase.DECODE)
    pasts = [placed.op.past_tokens for placed in graph if isinstance(placed.op, AttentionOp)]
    assert pasts == [12, 12]


@given(arch_specs(), st.sampled_from(["int8", "int4"]))
@settings(deadline=None, derandomize=True)
def test_quantising_changes_bytes_and_not_flops(arch: ArchSpec, weights: str) -> None:
    full = lower(Design(arch=arch), REQUEST, Phase.DECODE).work()
    small = lower(Design(arch=arch, weights=weights), REQUEST, Phase.DECODE).work()
    assert small.flops == full.flops
    assert (small.read_bytes, small.write_bytes) == (full.read_bytes, full.write_bytes)


@given(st.integers(1, 64), st.integers(1, 64))
@settings(deadline=None, derandomize=True)
def test_work_grows_with_the_prompt(prompt: int, more: int) -> None:
    arch = uniform(vocab_size=32, d_model=16, depth=2, heads=2, kv_heads=1, ffn_width=24, max_tokens=256)

    def flops(tokens: int) -> int:
        return lower(Design(arch=arch), Workload(prompt_tokens=tokens), Phase.PREFILL).work().flops

    assert flops(prompt + more) > flops(prompt)


def test_a_window_bounds_the_work_of_a_step() -> None:
    def flops(window: int | None, prompt: int) -> int:
        layer = Layer(attention=Attention(heads=1, kv_heads=1, head_size=16, window=window), ffn=None)
        workload = Workload(prompt_tokens=prompt, new_tokens=2)
        return lower(Design(arch=toy_arch(layers=(layer,), max_tokens=999)), workload, Phase.DECODE).work().flops

    assert flops(5, 100) == flops(5, 900) < flops(None, 100) < flops(None, 900)
