"""Fused operators of ranking models: the operators by pencil, one identity for what is usual, chosen by prediction."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from chipwise.api.testing.specs import toy_arch
from chipwise.deploy.export.onnx import export, random_weights
from chipwise.design.phases.matrix_formats import fastest_fusion
from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import USUALLY_FUSED, Design
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.ranking.stem import FUSIONS, RankingStem, Similarity
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.ranking import EmbeddingBagOp
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower

REQUEST = Workload(prompt_tokens=1, new_tokens=1)


def ranker(*, pointwise: bool = False, table: int = 0) -> ArchSpec:
    """One gated layer of width 32 over 10 positions, whose items have two of seven tags."""
    attention = Attention(heads=2, kv_heads=2, head_size=16, rope=False, relative_buckets=7, pointwise=pointwise)
    layer = Layer(attention=attention, ffn=FeedForward(width=48, gated=True, activation="silu"))
    stem = RankingStem(items=30, history=6, candidates=4, tags=7, bag=2, width=table)
    ends = {"positions": "none", "head": Similarity(), "stem": stem}
    return ArchSpec(d_model=32, layers=(layer,), max_tokens=7, **ends)  # type: ignore[arg-type]


def products(design: Design) -> dict[str, tuple[int, int, int]]:
    """Rows, inputs and outputs of each product, by place."""
    graph = lower(design, REQUEST, Phase.PREFILL)
    return {item.place: (item.op.m, item.op.k, item.op.n) for item in graph if isinstance(item.op, Matmul)}


@pytest.mark.parametrize(("pointwise", "parts"), [(False, ["q", "k", "v"]), (True, ["q", "k", "v", "gate"])])
def test_what_reads_one_input_is_one_product_or_several(pointwise: bool, parts: list[str]) -> None:
    """10 positions go into attention, 4 candidates into the feed-forward behind it."""
    arch = ranker(pointwise=pointwise)
    fused, apart = (products(Design(arch=arch, fused=names)) for names in (FUSIONS, ()))
    assert fused["layers.0.attention.qkv"] == (10, 32, 32 * len(parts))
    assert all(apart[f"layers.0.attention.{name}"] == (10, 32, 32) for name in parts)
    assert fused["layers.0.ffn.into"] == (4, 32, 96)
    assert apart["layers.0.ffn.gate"] == apart["layers.0.ffn.up"] == (4, 32, 48)
    assert len(apart) - len(fused) == len(parts)
    assert sum(m * k * n for m, k, n in fused.values()) == sum(m * k * n for m, k, n in apart.values())


def test_items_and_tags_are_looked_up_in_one_table_where_they_are_added() -> None:
    graph = lower(Design(arch=ranker(), fused=FUSIONS), REQUEST, Phase.PREFILL)
    (bag,) = [item.op for item in graph if isinstance(item.op, EmbeddingBagOp)]
    assert (bag.bags, bag.ids, bag.width, bag.rows) == (10, 3, 32, 31 + 8)
    narrow = ranker(table=16)  # their rows stand beside one another, for a matrix
    assert lower(Design(arch=narrow, fused=("qkv", "tables")), REQUEST, Phase.PREFILL) == lower(
        Design(arch=narrow), REQUEST, Phase.PREFILL
    )


def test_a_files_metadata_and_a_designs_identity_say_what_is_unusual(tmp_path: Path) -> None:
    usual, all_of_it = Design(arch=ranker()), Design(arch=ranker(), fused=("tables", "up", "qkv"))
    assert usual.fused == USUALLY_FUSED
    assert all_of_it.fused == FUSIONS, "in one order"
    assert usual.digest != all_of_it.digest == Design(arch=ranker(), fused=FUSIONS).digest
    weights = random_weights(ranker(), seed=0)
    for design, said in ((usual, None), (all_of_it, list(FUSIONS))):
        model = onnx.load(export(design, weights, tmp_path / "model.onnx"))
        facts = json.loads({item.key: item.value for item in model.metadata_props}["chipwise"])
        assert facts.get("fused") == said


def test_what_is_predicted_faster_is_fused() -> None:
    """Seconds by the number of products and look-ups; one operator is expensive when fused."""

    def predict(dear: str):  # type: ignore[no-untyped-def]
        return lambda design: {"ttft_p50": (8.0 - len(design.fused) + 3 * (dear in design.fused), None, None)}

    assert fastest_fusion(Design(arch=ranker()), predict("none"), pace="ttft_p50").fused == FUSIONS
    assert fastest_fusion(Design(arch=ranker()), predict("qkv"), pace="ttft_p50").fused == ("up", "tables")
    even = fastest_fusion(Design(arch=ranker()), lambda design: {"ttft_p50": (1.0, None, None)}, pace="ttft_p50")
    assert even.fused == USUALLY_FUSED, "what is no faster is left as usual"
    assert fastest_fusion(Design(arch=toy_arch()), predict("none"), pace="ttft_p50") == Design(arch=toy_arch())


def test_fusions_that_are_not_there_are_refused() -> None:
    with pytest.raises(SpecError, match="not one of qkv, up, tables"):
        Design(arch=ranker(), fused=("qkv", "norms"))
    with pytest.raises(SpecError, match="only ranking models"):
        Design(arch=toy_arch(), fused=())
