"""Ranking models: all forms agree; a request's work by pencil."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import strategies as st

from chipwise.deploy.export.onnx import random_weights
from chipwise.errors import SpecError, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.ends import LmHead, States, Tokens
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.io import from_data, to_data
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.ranking.form import RANKER, with_candidates
from chipwise.model.kinds.ranking.stem import RankingStem, Similarity
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.ranking import EmbeddingBagOp, RequestAttentionOp, RowDotOp
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower
from chipwise.model.walk.slicing import cuts
from chipwise.model.walk.weights import weight_shapes
from chipwise.predict.cost.memory import memory_parts
from support.archs import ranking_archs
from support.form_suite import RankingSuite

REQUEST = Workload(prompt_tokens=1, new_tokens=1)


class TestRankingModels(RankingSuite):
    """Any small ranking model."""

    def archs(self) -> st.SearchStrategy[ArchSpec]:
        return ranking_archs()


def ranker(*, pointwise: bool = False, width: int = 0, bag: int = 0, depth: int = 2) -> ArchSpec:
    """Width 16, two heads of 8, a feed-forward of 24; 10 items of history, 4 candidates, 100 items."""
    stem = RankingStem(items=100, history=10, candidates=4, width=width, tags=9 if bag else 0, bag=bag)
    attention = Attention(heads=2, kv_heads=2, head_size=8, rope=False, relative_buckets=11, pointwise=pointwise)
    ffn = FeedForward(width=24, gated=False, activation="relu")
    return ArchSpec(
        stem=stem,
        head=Similarity(),
        d_model=16,
        layers=(Layer(attention=attention, ffn=ffn),) * depth,
        max_tokens=11,
        positions="none",
    )


def flops(arch: ArchSpec) -> int:
    """FLOPs of one request."""
    return sum(placed.op.work().flops for placed in lower(Design(arch=arch), REQUEST, Phase.PREFILL))


def test_parameters_by_pencil() -> None:
    """Table 101·16; a layer: 4·16·16 of attention, 11·2 of distances, 2·16·24 of FFN, two norms of 16; a last norm."""
    assert ranker().parameters() == 101 * 16 + 2 * (4 * 256 + 22 + 2 * 16 * 24 + 32) + 16


def test_tables_of_another_width_and_gates_by_pencil() -> None:
    """Rows of 6: (101 + 10)·6 and a matrix of (12 + 1)·16; a gate of 16·16 and a norm of 16 in each attention."""
    plain = ranker().parameters() - 101 * 16
    assert ranker(width=6, bag=2).parameters() - plain == 111 * 6 + 13 * 16
    assert ranker(pointwise=True).parameters() - ranker().parameters() == 2 * (256 + 16)


def test_a_candidate_costs_its_own_part_alone() -> None:
    """Each further candidate: 5 products with the model's matrices in the first layer, as many in the second."""
    one, two, three = (flops(with_candidates(ranker(), count)) for count in (1, 2, 3))
    assert two - one == three - two
    ops = [placed.op for placed in lower(Design(arch=with_candidates(ranker(), 2)), REQUEST, Phase.PREFILL)]
    each = sum(2 * op.k * op.n for op in ops if isinstance(op, Matmul))
    attention = sum(op.heads * 11 * (4 * op.head_size + 5) for op in ops if isinstance(op, RequestAttentionOp))
    small = two - one - each - attention
    assert 0 < small < 0.2 * (two - one)  # norms, activations, sums


def test_after_the_last_attention_only_candidates_remain() -> None:
    """Its output projection and the FFN after it have 4 rows; those of the layer before have 14."""
    rows = {p.place: p.op.m for p in lower(Design(arch=ranker()), REQUEST, Phase.PREFILL) if isinstance(p.op, Matmul)}
    assert (rows["layers.0.attention.out"], rows["layers.0.ffn.up"]) == (14, 14)
    assert (rows["layers.1.attention.qkv"], rows["layers.1.attention.out"], rows["layers.1.ffn.up"]) == (14, 4, 4)


def test_attention_of_a_request_by_pencil() -> None:
    """10 of history see 1 + … + 10, 4 candidates 11 each: 99 pairs a head, 4·8 + 5 FLOPs each; unfused 14·11 pairs."""
    op = RequestAttentionOp(batch=1, history=10, candidates=4, heads=2, head_size=8, fused=True)
    assert op.pairs() == 55 + 44
    assert op.work().flops == 2 * 99 * 37
    assert replace(op, fused=False).work().flops == 2 * 14 * 11 * 37
    assert replace(op, whole=False).pairs() == 44
    assert replace(op, pointwise=True).work().flops == 2 * 99 * 39


def test_bags_and_products_of_rows_by_pencil() -> None:
    """5 bags of 3 rows of 8 values: 15 rows read (4 bytes a value), 5 written; two FLOPs a value of a product."""
    bag = EmbeddingBagOp(bags=5, ids=3, width=8, rows=100).work()
    assert (bag.flops, bag.weight_bytes, bag.write_bytes) == (15 * 8, 15 * 8 * 4, 5 * 8 * 4)
    dot = RowDotOp(rows=5, width=8).work()
    assert (dot.flops, dot.read_bytes, dot.write_bytes) == (80, 2 * 5 * 8 * 4, 20)


@pytest.mark.parametrize("pointwise", [False, True])
@pytest.mark.parametrize("width", [0, 6])
def test_memory_holds_every_weight(pointwise: bool, width: int) -> None:
    """In FP32 four bytes a parameter; a request leaves no cache behind."""
    arch = ranker(pointwise=pointwise, width=width, bag=2)
    parts = memory_parts(Design(arch=arch), REQUEST)
    assert parts.table_bytes + parts.matrix_bytes == 4 * arch.parameters()
    assert parts.kv_bytes == 0


def test_the_number_of_candidates_is_no_part_of_the_weights() -> None:
    few, many = (with_candidates(ranker(), count) for count in (1, 500))
    assert weight_shapes(few) == weight_shapes(many)
    assert cuts(few, many).keys() == weight_shapes(few).keys()
    assert few.digest != many.digest


def test_files_hold_ranking_models() -> None:
    arch = ranker(pointwise=True, width=6, bag=2)
    assert from_data(to_data(arch)) == arch


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arch: replace(arch, stem=replace(arch.stem, shards=2)), "2 shards are not supported"),
        (lambda arch: replace(arch, layers=(Layer(attention=None, ffn=arch.layers[0].ffn),)), "candidates would not"),
        (
            lambda arch: replace(
                arch, layers=(replace(arch.layers[0], attention=replace(arch.layers[0].attention, causal=False)),)
            ),
            "causal = False",
        ),
        (
            lambda arch: replace(arch, stem=replace(arch.stem, history=12)),
            "relative_buckets = 11 is not supported with a history of 12",
        ),
    ],
)
def test_what_is_not_built_is_named(change: object, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        random_weights(change(ranker()), seed=0)  # type: ignore[operator]


def test_fields_that_contradict_one_another_are_refused() -> None:
    with pytest.raises(SpecError, match="tags need both a number of table rows"):
        RankingStem(items=5, history=2, candidates=1, bag=2)
    with pytest.raises(SpecError, match="needs head: scores or head: similarity"):
        replace(ranker(), head=States())
    with pytest.raises(SpecError, match="at least 1, not 0"):
        with_candidates(ranker(), 0)
    with pytest.raises(Unsupported, match="does not rank"):
        RANKER.require(replace(ranker(), stem=Tokens(vocab_size=5), head=LmHead()), work="built")
