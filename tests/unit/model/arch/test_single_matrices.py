"""Formats of single matrices: one text for each choice, and the same in weights, graphs, prices and memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chipwise.api import estimate
from chipwise.api.testing.specs import toy_arch
from chipwise.deploy.export.onnx import export, random_weights
from chipwise.errors import SpecError, UnknownName
from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.model.arch.design import Design
from chipwise.model.arch.ends import Classes, LmHead
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.formats import by_matrix, mixed, read_formats, renamed
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.question.projector.spec import Projector
from chipwise.model.kinds.question.question import Question, QuestionStem
from chipwise.model.kinds.ranking.stem import RankingStem, Scores
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower
from chipwise.model.walk.weights import matrices_of, weight_shapes
from chipwise.predict.cost.memory import memory_parts

WORKLOAD = Workload(prompt_tokens=4, new_tokens=2)
NAMES = st.sampled_from(("fp32", "int8", "int4"))
MATRICES = ("head", "projection", *(f"{i}.{name}" for i in range(3) for name in ("qkv", "out", "up", "down")))


def ranker() -> ArchSpec:
    """Two layers, gated, one pointwise, tables of 16 values for a width of 32."""
    softmax = Attention(heads=2, kv_heads=2, head_size=16, rope=False, relative_buckets=7)
    pointwise = Attention(heads=2, kv_heads=2, head_size=16, rope=False, relative_buckets=7, pointwise=True)
    layers = (
        Layer(attention=softmax, ffn=FeedForward(width=48, gated=True, activation="silu")),
        Layer(attention=pointwise, ffn=None),
    )
    stem = RankingStem(items=30, history=6, candidates=4, width=16)
    return ArchSpec(stem=stem, head=Scores(), d_model=32, layers=layers, max_tokens=7, positions="none")


def classifier() -> ArchSpec:
    """One layer over four patches."""
    attention = Attention(heads=2, kv_heads=2, head_size=16, rope=False, causal=False, qkv_bias=True, out_bias=True)
    layer = Layer(attention=attention, ffn=FeedForward(width=32, gated=False, activation="gelu", bias=True))
    stem = ImageStem(image_size=8, channels=1, patch=4, prefix_tokens=0)
    return ArchSpec(
        d_model=32,
        layers=(layer,),
        max_tokens=stem.tokens,
        stem=stem,
        head=Classes(count=10, pooling="mean"),
        positions="learned",
        norm="layernorm",
        norm_bias=True,
    )


def crossing() -> ArchSpec:
    """The classifier as a model of questions about an image that its one layer sees by cross-attention."""
    arch = classifier()
    (layer,), projector = arch.layers, Projector(widths=(32, 32))
    stem = replace(arch.stem, bias=False)
    asked = QuestionStem(image=stem, projector=projector, question=Question(words=9, tokens=3))
    layers, head = (replace(layer, cross=layer.attention),), Classes(count=10, pooling="last")
    return replace(arch, layers=layers, max_tokens=7, stem=asked, head=head)


@given(st.dictionaries(st.sampled_from(MATRICES), NAMES), NAMES)
def test_texts_are_read_back_and_name_one_choice_each(formats: dict[str, str], others: str) -> None:
    found = by_matrix(formats, 3, others=others)
    assert read_formats(str(found), 3) == found
    assert {name: found.of(name) for name in MATRICES} == dict.fromkeys(MATRICES, others) | formats
    assert mixed(str(found)) == (len({others, *formats.values()}) > 1 and set(formats.values()) != {others})
    assert renamed(str(found), lambda name: name) == str(found)


def test_parts_of_one_product_have_one_format() -> None:
    """Queries, keys, values and a gate read one input, as gate and up of a feed-forward do."""
    design = Design(arch=ranker(), weights="fp32 0.up:int4 1.qkv:int8")
    found = {name: design.format_of(name) for name in weight_shapes(design.arch)}
    assert {name for name, form in found.items() if form == "int8"} == {
        f"layers.1.attention.{part}.weight" for part in ("q", "k", "v", "gate")
    }
    assert {name for name, form in found.items() if form == "int4"} == {
        "layers.0.ffn.gate.weight",
        "layers.0.ffn.up.weight",
    }


def test_queries_of_cross_attention_have_a_format_of_their_own() -> None:
    """They read the words, keys and values the image: two products, two formats."""
    design = Design(arch=crossing(), weights="fp32 0.cross.kv:int8 0.cross.q:int4")
    found = {name: design.format_of(name) for name in weight_shapes(design.arch)}
    named = {name.removeprefix("layers.0."): form for name, form in found.items() if form != "fp32"}
    assert named == {"cross.q.weight": "int4", "cross.k.weight": "int8", "cross.v.weight": "int8"}


def test_matrices_are_listed_the_largest_first() -> None:
    """32 x 128, twice 32 x 48, 32 x 96, 48 x 32, twice 32 x 32, 16 x 32 and a row; tables and biases are none."""
    assert matrices_of(ranker()) == ["1.qkv", "0.qkv", "0.up", "0.down", "0.out", "1.out", "projection", "head"]
    tied = uniform(vocab_size=50, d_model=16, depth=1, heads=2, ffn_width=16)
    assert matrices_of(tied)[0] == "head"  # 50 rows; it has a format of its own, though FP32 reads the token table
    assert sorted(matrices_of(tied)) == sorted(matrices_of(tied.with_tied(False)))


@pytest.mark.parametrize("text", ["int8 9.up:fp32", "int8 0.ffn:fp32", "int8 up:fp32", "int8 0.up"])
def test_what_no_model_has_is_refused(text: str) -> None:
    with pytest.raises((SpecError, UnknownName)):
        Design(arch=toy_arch(), weights=text)


def test_served_chips_know_layers_alone() -> None:
    arch = uniform(vocab_size=64, d_model=32, depth=1, heads=2, ffn_width=32)
    with pytest.raises(SpecError, match="calibrated machine"):
        estimate(arch, device="h100-sxm", weights="bf16 0.up:fp8")


@pytest.mark.parametrize(
    "arch",
    [ranker(), classifier(), crossing(), toy_arch(head=LmHead(tied=False))],
    ids=["ranker", "classifier", "crossing", "text"],
)
def test_lowering_and_memory_have_the_formats_of_the_file(arch: ArchSpec, tmp_path: Path) -> None:
    """Narrow one matrix after the other: as many int8 products are priced as nodes are exported, and bytes add up."""
    weights = random_weights(arch, seed=0)
    plain = memory_parts(Design(arch=arch), WORKLOAD)
    saved = 0
    for matrix in matrices_of(arch):
        design = Design(arch=arch, weights=str(by_matrix({matrix: "int8"}, len(arch.layers))))
        model = onnx.load(export(design, weights, tmp_path / "model.onnx"))
        nodes = Counter(node.op_type for node in model.graph.node)["DynamicQuantizeMatMul"]
        ops = [item.op for item in lower(design, WORKLOAD, Phase.PREFILL) if isinstance(item.op, Matmul)]
        assert nodes == sum(op.weights == "int8" for op in ops) >= 1
        parts = memory_parts(design, WORKLOAD)
        assert parts.table_bytes == plain.table_bytes
        assert parts.matrices["int8"] > 0
        saved += plain.matrix_bytes - parts.matrix_bytes
    whole = memory_parts(Design(arch=arch, weights="int8"), WORKLOAD)
    assert saved == plain.matrix_bytes - whole.matrix_bytes


@settings(max_examples=20)
@given(st.sets(st.sampled_from(MATRICES)))
def test_memory_of_any_mixture_lies_between_those_of_its_formats(narrow: set[str]) -> None:
    arch = toy_arch(head=LmHead(tied=False))
    known = set(matrices_of(arch)) & narrow
    size = memory_parts(
        Design(arch=arch, weights=str(by_matrix(dict.fromkeys(known, "int8"), len(arch.layers)))), WORKLOAD
    ).matrix_bytes
    low, high = (memory_parts(Design(arch=arch, weights=form), WORKLOAD).matrix_bytes for form in ("int8", "fp32"))
    assert low <= size <= high
