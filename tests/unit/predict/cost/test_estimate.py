"""Costs on a machine with round numbers, by pencil and by law."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.deploy.calibrate.random_models import random_designs
from chipwise.deploy.export.onnx import build, random_weights
from chipwise.errors import SpecError, UnknownName, Unsupported
from chipwise.hardware.device import MachineProfile
from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.model.arch.design import Design
from chipwise.model.arch.ends import Classes
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.formats import formats_word
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower
from chipwise.predict.cost.estimate import estimate
from chipwise.predict.cost.memory import layer_activation_bytes, memory_parts
from chipwise.predict.cost.model import Bound
from chipwise.predict.cost.pricing import PRICE_COLUMNS, combine, op_price, total_price
from support.archs import denoiser_archs, image_archs
from support.machines import US, round_machine
from support.models import check_each

NS = 1e-9
WORKLOAD = Workload(prompt_tokens=8, new_tokens=8)


def estimated(design: Design, profile: MachineProfile):
    graphs = [lower(design, WORKLOAD, phase) for phase in (Phase.PREFILL, Phase.DECODE)]
    return estimate(design, *graphs, WORKLOAD, profile)


def test_price_of_a_matrix_vector_product() -> None:
    """(1, 8) times (8, 16): a node, 8 in, 16 out; 512 bytes streamed."""
    price = dict(zip(PRICE_COLUMNS, op_price(Matmul(m=1, k=8, n=16), round_machine()), strict=True))
    assert price["fixed_s"] == pytest.approx(US + 24 * NS)
    assert price["matmul.fp32.vector"] == 512
    assert price["resident_bytes"] == 0


def test_price_of_attention() -> None:
    """One query over 3 + 1 keys, two heads of 16: 8 scores, 128 products, 16·(2 + 2·1) values, 16·3 rotated."""
    op = AttentionOp(batch=1, query_tokens=1, past_tokens=3, heads=2, kv_heads=1, head_size=16)
    price = op_price(op, round_machine())
    assert price[0] == pytest.approx(US + (2 + 8 + 128 + 64 + 48) * NS)
    assert price[1] == 2 * 4 * 16 * 4  # keys and values of four positions


def test_a_bias_is_a_node_of_its_own_in_fp32_alone() -> None:
    plain, biased = (op_price(Matmul(m=1, k=8, n=16, bias=b), round_machine()) for b in (False, True))
    assert (biased - plain)[0] == pytest.approx(US + 16 * NS)
    plain, biased = (op_price(Matmul(m=1, k=8, n=16, weights="int8", bias=b), round_machine()) for b in (False, True))
    assert biased.tolist() == plain.tolist()


def test_combine_by_hand() -> None:
    """2,048 bytes lie half way (in logarithm) between the knots: 2 ns a byte. Twice the nodes, a call, 7 logits."""
    price = np.zeros(len(PRICE_COLUMNS))
    price[0], price[PRICE_COLUMNS.index("matmul.int8.vector")] = 5 * US, 2048
    seconds = combine(price, round_machine(), Phase.DECODE, logits=7)
    assert float(seconds) == pytest.approx(2 * (5 * US + 2048 * 2 * NS) + 10 * US + 7 * NS)


def test_many_candidates_are_priced_as_each_alone() -> None:
    profile = round_machine()
    designs = random_designs(6, seed=3)
    prices = [total_price((p.op for p in lower(d, WORKLOAD, Phase.DECODE)), profile) for d in designs]
    logits = np.array([d.arch.vocab_size for d in designs])
    together = combine(np.array(prices), profile, Phase.DECODE, logits=logits)
    alone = [float(combine(p, profile, Phase.DECODE, logits=n)) for p, n in zip(prices, logits, strict=True)]
    assert together.tolist() == pytest.approx(alone)
    assert alone == pytest.approx([estimated(d, profile).tpot_s for d in designs])


@pytest.mark.parametrize("design", random_designs(6, seed=1), ids=lambda d: f"{d.arch.name}-{d.weights}")
def test_the_parts_add_up_to_the_pass(design: Design) -> None:
    cost = estimated(design, round_machine())
    rest = 10 * US + design.arch.vocab_size * NS
    assert sum(op.latency_s for op in cost.decode) + rest == pytest.approx(cost.tpot_s)
    assert sum(op.latency_s for op in cost.prefill) + rest == pytest.approx(cost.ttft_s)
    assert all(op.latency_s > 0 for op in cost.decode)


def test_tails_and_intervals() -> None:
    cost = estimated(random_designs(1, seed=0)[0], round_machine())
    tpot = cost.metric("tpot_p50")
    assert cost.metric("tpot_p99").value == pytest.approx(2 * tpot.value + US)
    assert math.log(tpot.high / tpot.value) == pytest.approx(0.1645)
    assert tpot.low * tpot.high == pytest.approx(tpot.value**2)
    with pytest.raises(UnknownName, match="tpot_p99"):
        cost.metric("tpot_p98")


@given(st.integers(1, 8), st.floats(1, 10))
def test_slower_memory_never_makes_a_model_faster(seed: int, factor: float) -> None:
    design = random_designs(1, seed=seed)[0]
    fast, slow = round_machine(), round_machine(s_per_byte=(1e-9, 3e-9 * factor))
    assert estimated(design, slow).tpot_s >= estimated(design, fast).tpot_s


def test_bounds() -> None:
    """A relu of one value is all node; a long one is its values; a big vector product is its weights."""
    arch = uniform(vocab_size=256, d_model=64, depth=1, heads=1, ffn_width=4096, activation="relu", gated=False)
    ops = {op.place: op for op in estimated(Design(arch=arch), round_machine()).decode}
    assert ops["layers.0.ffn.up"].bound is Bound.MEMORY
    assert ops["layers.0.ffn.activation"].bound is Bound.COMPUTE
    assert ops["layers.0.ffn.norm"].bound is Bound.LAUNCH


def test_an_unknown_rate_is_an_error() -> None:
    with pytest.raises(Unsupported, match=r"matmul\.bf16\.vector.*calibrate"):
        op_price(Matmul(m=1, k=8, n=8, weights="bf16"), round_machine())


def test_a_skip_before_layernorm_is_a_node_of_its_own() -> None:
    profile = round_machine()
    apart = op_price(NormOp(rows=1, width=8, norm="layernorm"), profile) + op_price(
        Elementwise(function="add", elements=8, inputs=2), profile
    )
    together = op_price(NormOp(rows=1, width=8, norm="layernorm", skip=True), profile)
    assert together.tolist() == pytest.approx(apart.tolist())


@pytest.mark.parametrize("design", random_designs(9, seed=5), ids=lambda d: f"{d.arch.name}-{d.weights}")
def test_counted_weight_bytes_are_those_of_the_exported_file(design: Design) -> None:
    """But for rotary tables, shapes and indices, which are no weights."""
    stored = build(design, random_weights(design.arch, seed=0)).graph.initializer
    weights = [t for t in stored if not t.name.startswith(("rotary", "shape", "last"))]
    parts = memory_parts(design, WORKLOAD)
    assert parts.table_bytes + parts.matrix_bytes == sum(len(t.raw_data) for t in weights)


@pytest.mark.parametrize("seed", range(6))
def test_counted_weight_bytes_of_mixed_formats_are_those_of_the_exported_file(seed: int) -> None:
    rng, design = np.random.default_rng(seed), random_designs(1, seed=seed)[0]
    own = rng.choice(["fp32", "int8", "int4"], len(design.arch.layers)).tolist()
    layers = [own[i if layer.shares is None else layer.shares] for i, layer in enumerate(design.arch.layers)]
    mixed = replace(design, weights=formats_word(layers, str(rng.choice(["fp32", "int8", "int4"]))))
    stored = build(mixed, random_weights(mixed.arch, seed=0)).graph.initializer
    weights = [t for t in stored if not t.name.startswith(("rotary", "shape", "last"))]
    parts = memory_parts(mixed, WORKLOAD)
    assert parts.table_bytes + parts.matrix_bytes == sum(len(t.raw_data) for t in weights)
    streamed = total_price((item.op for item in lower(mixed, WORKLOAD, Phase.DECODE)), round_machine())
    for name in ("fp32", "int8", "int4"):
        assert (streamed[PRICE_COLUMNS.index(f"matmul.{name}.vector")] > 0) == (name in mixed.formats.all)


def test_memory_of_mixed_formats_by_hand() -> None:
    """Two layers of width 32, one head of 32, FFN of 32 with a gate, the first in int4; an int8 head of 10 tokens."""
    arch = uniform(vocab_size=10, d_model=32, depth=2, heads=1, ffn_width=32)
    design = Design(arch=arch, weights="int4/int8 head:int8")
    square = 32 * 32
    parts = memory_parts(design, WORKLOAD)
    assert parts.matrices == {"int4": 7 * (square // 2 + 32 * 4), "int8": 7 * (square + 32 * 4) + 10 * 32 + 10 * 4}
    machine = round_machine()
    rates = replace(machine.memory, per_matrix_byte={"fp32": 1.0, "int8": 2.0, "int4": 3.0})
    held = estimated(design, replace(machine, memory=rates)).peak_memory_bytes
    rest = 1e6 + parts.table_bytes + parts.kv_bytes + parts.activation_bytes
    assert held == rest + 2 * parts.matrices["int8"] + 3 * parts.matrices["int4"]


def test_peak_memory_by_hand() -> None:
    """One layer of one head of 16, width 16, FFN of 32 with a gate; fp32 tied; 8 + 8 positions."""
    arch = uniform(vocab_size=10, d_model=16, depth=1, heads=1, ffn_width=32)
    parts = memory_parts(Design(arch=arch), WORKLOAD)
    assert parts.table_bytes == 4 * (160 + 3 * 16)
    assert parts.matrix_bytes == 4 * (4 * 16 * 16 + 3 * 16 * 32)
    assert parts.kv_bytes == 4 * 2 * 16 * 16
    assert parts.activation_bytes == 4 * (3 * 8 * 32 + 2 * 8 * 16)
    peak = estimated(Design(arch=arch), round_machine()).peak_memory_bytes
    assert peak == 1e6 + parts.table_bytes + 2 * parts.matrix_bytes + parts.kv_bytes + parts.activation_bytes


def test_a_profile_survives_its_file(tmp_path) -> None:
    profile = round_machine()
    profile.save(tmp_path / "toy.json")
    again = MachineProfile.load(tmp_path / "toy.json")
    assert again.digest == profile.digest
    assert "10 %" in again.check_errors
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(SpecError, match="chipwise calibrate"):
        MachineProfile.load(tmp_path / "other.json")


def test_models_of_one_pass_have_a_time_an_image_and_none_a_token() -> None:
    """Two images are classified in one pass: an image takes half of it; a rate is high where the time is low."""
    stem = ImageStem(image_size=8, patch=4)
    layer = Layer(
        attention=Attention(heads=1, kv_heads=1, head_size=16, rope=False, causal=False),
        ffn=FeedForward(width=32, gated=False, activation="gelu"),
    )
    arch = ArchSpec(
        stem=stem,
        head=Classes(count=5),
        d_model=16,
        layers=(layer,),
        max_tokens=stem.tokens,
        norm="layernorm",
        norm_bias=True,
        positions="learned",
    )
    workload = Workload(batch=2)
    graphs = [lower(Design(arch=arch), workload, phase) for phase in (Phase.PREFILL, Phase.DECODE)]
    found = estimate(Design(arch=arch), *graphs, workload, round_machine())
    assert set(found.metrics) == {"ttft_p50", "ttft_p99", "throughput", "image_s", "peak_memory"}
    whole, each, rate = (found.metrics[name] for name in ("ttft_p50", "image_s", "throughput"))
    assert (each.value, each.low, each.high) == pytest.approx((whole.value / 2, whole.low / 2, whole.high / 2))
    assert (rate.value, rate.low, rate.high) == pytest.approx((1 / each.value, 1 / each.high, 1 / each.low))
    assert found.tpot_s == 0.0


def held_in_fp32(arch: ArchSpec) -> None:
    """All parameters, 4 bytes each; a bias by distance is in the file once for each pair of positions that see it."""
    parts = memory_parts(Design(arch=arch), Workload(batch=2))
    more = 0
    for block in (layer.attention for layer in arch.layers if layer.shares is None):
        if block is not None and block.relative_buckets:
            assert isinstance(arch.stem, ImageStem)
            more += block.heads * (arch.stem.tokens**2 - block.relative_buckets)
    assert parts.table_bytes + parts.matrix_bytes == 4 * (arch.parameters() + more)
    assert parts.kv_bytes == 0  # nothing is generated


def test_what_models_of_one_pass_hold_is_their_parameters() -> None:
    check_each(held_in_fp32, image_archs(), examples=20)
    check_each(held_in_fp32, denoiser_archs(), examples=10)


def test_cross_attention_needs_the_words_the_image_and_their_scores() -> None:
    """Batch 3, 7 words over 9 image tokens, width 16, 2 heads of 8: per request, in values,

    the stream twice 2·7·16, queries and results 2·7·16, the image's tokens 9·16 with keys and values 9·2·16,
    scores 2·7·9.
    """
    block = Attention(heads=2, kv_heads=2, head_size=8, rope=False, causal=False)
    arch = SimpleNamespace(d_model=16, image_tokens=9)
    layer = Layer(attention=None, cross=block, ffn=None)
    values = 4 * 7 * 16 + 3 * 9 * 16 + 2 * 7 * 9
    assert layer_activation_bytes(layer, arch, Workload(batch=3, prompt_tokens=7)) == 3 * 4 * values  # type: ignore[arg-type]
