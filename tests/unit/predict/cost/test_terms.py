"""What an operator's time grows with, by pencil."""

from __future__ import annotations

import pytest

from chipwise.errors import Unsupported
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.matmul import ConvOp, Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.once import Once
from chipwise.model.ops.pool import PoolOp
from chipwise.model.ops.ranking import EmbeddingBagOp, RequestAttentionOp, RowDotOp
from chipwise.predict.cost.terms import Term, terms


@pytest.mark.parametrize(
    ("weights", "k", "left"),
    [("fp32", 128, 0), ("fp32", 96, 32), ("int4", 256, 0), ("int4", 224, 96), ("int4", 64, 64)],
)
def test_what_is_left_of_a_weight_row_after_whole_steps(weights: str, k: int, left: int) -> None:
    for rows in (1, 3):
        amounts = terms(Matmul(m=rows, k=k, n=10, weights=weights))[0].amounts
        assert amounts["rest"] == rows * 10 * left


def test_int8_rows_leave_nothing() -> None:
    assert "rest" not in terms(Matmul(m=1, k=33, n=10, weights="int8"))[0].amounts


def test_what_is_left_of_a_heads_keys() -> None:
    for size, left in ((16, 16), (32, 32), (64, 0), (80, 16)):
        op = AttentionOp(batch=2, query_tokens=3, past_tokens=5, heads=4, kv_heads=2, head_size=size)
        assert terms(op)[0].amounts["rest"] == 2 * 3 * 4 * left


def add(elements: int) -> Term:
    """A sum of two tensors as a separate node."""
    return Term(model="elementwise.add", amounts={"node": 1, "value": elements})


def test_values_that_leave_a_cores_caches() -> None:
    """None of 1 MB, all of 16 MB, half of what lies at the geometric mean of 4 MB; values are read and written."""
    sizes = {125_000: 0, 500_000: 500_000, 2_000_000: 4_000_000, 10_000_000: 20_000_000}
    for elements, leaving in sizes.items():
        amounts = terms(Elementwise(function="relu", elements=elements))[0].amounts
        assert amounts.get("far", 0) == pytest.approx(leaving)
    amounts = terms(Matmul(m=40_000, k=60, n=40))[0].amounts
    assert amounts["far"] == 40_000 * (60 + 40)


def test_products_of_one_row_and_of_several() -> None:
    """k 33 in int8: (1 · 33) in, (1 · 10) out; with m rows, m times each, and m · k · n products."""
    (one,) = terms(Matmul(m=1, k=33, n=10, weights="int8"))
    assert (one.model, one.amounts) == ("matmul.int8.vector", {"node": 1, "in": 33, "out": 10})
    assert one.streamed_bytes == 33 * 10 + 10 * 4  # a scale of 32 bits a column
    (two,) = terms(Matmul(m=2, k=33, n=10, weights="int8"))
    assert (two.model, two.amounts) == ("matmul.int8.matrix", {"node": 1, "in": 66, "out": 20, "products": 660})
    assert two.streamed_bytes == one.streamed_bytes


def test_a_bias_adds_a_sum_in_fp32_alone() -> None:
    assert terms(Matmul(m=3, k=64, n=10, bias=True))[1:] == [add(30)]
    assert terms(Matmul(m=3, k=64, n=10, weights="int8", bias=True))[1:] == []


def test_attention_over_a_prompt() -> None:
    """Batch 2, 3 queries over 5 + 3 positions, 4 heads of 16 that share 2 KV heads.

    Rows 2·3 = 6; scores 6·4·8 = 192; products 192·16; values 6·(4 + 2·2)·16; rotated 6·(4 + 2)·16; rest 6·4·16.
    Cache: keys and values (2) of batch 2, 8 positions, 2 heads of 16, 4 bytes each.
    """
    shape = {"batch": 2, "heads": 4, "kv_heads": 2, "head_size": 16}
    (term,) = terms(AttentionOp(query_tokens=3, past_tokens=5, **shape))
    assert term.model == "attention.prompt"
    assert term.amounts == {
        "node": 1,
        "head": 8,
        "score": 192,
        "product": 192 * 16,
        "value": 6 * 8 * 16,
        "rest": 6 * 4 * 16,
        "rotated": 6 * 6 * 16,
        "query": 24,
    }
    assert (term.resident_bytes, term.streamed_bytes) == (2 * 2 * 8 * 2 * 16 * 4, 0)
    (step,) = terms(AttentionOp(query_tokens=1, past_tokens=7, rope=False, **shape))
    assert step.model == "attention.step"
    assert step.amounts == {"node": 1, "head": 8, "score": 64, "product": 1024, "value": 256, "rest": 128}
    assert step.resident_bytes == term.resident_bytes


def test_a_window_bounds_what_attention_sees() -> None:
    """Three queries with a window of 4 see 4 + 3 - 1 = 6 positions together, where 8 are there; a wide window all 8."""
    shape = {"batch": 1, "query_tokens": 3, "past_tokens": 5, "heads": 1, "kv_heads": 1, "head_size": 64}
    assert [terms(AttentionOp(window=w, **shape))[0].amounts["score"] for w in (4, 6, 100)] == [18, 24, 24]
    assert terms(AttentionOp(window=4, **shape))[0].resident_bytes == 2 * 6 * 64 * 4


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (NormOp(rows=3, width=8), [Term(model="norm.rmsnorm", amounts={"node": 1, "row": 3, "value": 24})]),
        (
            NormOp(rows=3, width=8, skip=True),
            [Term(model="norm.skip_rmsnorm", amounts={"node": 1, "row": 3, "value": 24})],
        ),
        (
            NormOp(rows=3, width=8, norm="layernorm", skip=True),
            [Term(model="norm.layernorm", amounts={"node": 1, "row": 3, "value": 24}), add(24)],
        ),
        (
            NormOp(rows=3, width=8, norm="layernorm"),
            [Term(model="norm.layernorm", amounts={"node": 1, "row": 3, "value": 24})],
        ),
        (
            Elementwise(function="silu", elements=5),
            [Term(model="elementwise.silu", amounts={"node": 1, "value": 5})],
        ),
        (
            EmbeddingOp(rows=100, tokens=3, width=8),
            [Term(model="gather", amounts={"node": 1, "row": 3, "value": 24})],
        ),
        (
            ConvOp(batch=2, positions=3, in_channels=8, out_channels=8, taps=4, groups=8),
            [Term(model="conv", amounts={"node": 1, "value": 48, "tap": 192})],
        ),
        (
            ConvOp(batch=2, positions=3, in_channels=8, out_channels=8, taps=4, groups=8, centred=True),
            [Term(model="conv.centred", amounts={"node": 1, "value": 48, "tap": 192})],
        ),
        (
            ConvOp(batch=2, positions=3, in_channels=5, out_channels=7, taps=4),
            [Term(model="conv.image", amounts={"node": 1, "in": 120, "out": 42, "products": 120 * 7})],
        ),
        (PoolOp(batch=2, positions=3, width=5), [Term(model="pool", amounts={"node": 1, "value": 30})]),
        (
            EmbeddingBagOp(bags=2, ids=3, width=5, rows=100),
            [Term(model="bag", amounts={"node": 1, "row": 6, "value": 30})],
        ),
        (RowDotOp(rows=4, width=5), [Term(model="dot", amounts={"node": 1, "row": 4, "value": 20})]),
    ],
)
def test_other_operators(op: object, expected: list[Term]) -> None:
    assert terms(op) == expected  # type: ignore[arg-type]


def test_an_unknown_operator_is_named() -> None:
    class Odd:
        kind = "odd"

    with pytest.raises(Unsupported, match="operators of kind odd"):
        terms(Odd())  # type: ignore[arg-type]


@pytest.mark.parametrize(("whole", "queries"), [(True, 7 + 3), (False, 3)])
@pytest.mark.parametrize(("pointwise", "kind"), [(True, "pointwise"), (False, "softmax")])
def test_attention_of_a_request(whole: bool, queries: int, pointwise: bool, kind: str) -> None:
    """Batch 2, a history of 7, 3 candidates, 4 heads of 5: each query has a score for the history and for itself.

    With ``whole`` the history asks too. All 2 · 10 positions of 20 values are moved to heads and back.
    """
    op = RequestAttentionOp(batch=2, history=7, candidates=3, heads=4, head_size=5, whole=whole, pointwise=pointwise)
    rows = 2 * queries
    assert terms(op) == [
        Term(
            model=f"attention.{kind}.{'whole' if whole else 'last'}",
            amounts={
                "node": 1,
                "head": 2 * 4,
                "row": rows * 4,
                "score": rows * 4 * 8,
                "product": rows * 4 * 8 * 5,
                "value": rows * 20,
                "moved": 2 * 10 * 20,
            },
        )
    ]


@pytest.mark.parametrize(
    ("op", "values"),
    [
        (PoolOp(batch=1_000, positions=100, width=100), None),  # read once, in order
        (EmbeddingOp(rows=9, tokens=100_000, width=100), 2 * 10_000_000),
        (EmbeddingBagOp(bags=50_000, ids=2, width=100, rows=9), 10_000_000),
        (RowDotOp(rows=100_000, width=100), 10_000_000),
        (NormOp(rows=100_000, width=100), 2 * 10_000_000),
        (
            RequestAttentionOp(batch=1_000, history=63, candidates=1, heads=5, head_size=20),
            1_000 * 64 * 5 * 64 + 4 * 1_000 * 64 * 100,  # scores, and positions to heads and back
        ),
    ],
    ids=lambda each: getattr(each, "kind", ""),
)
def test_what_leaves_the_caches_is_counted_in_values(op: object, values: float | None) -> None:
    """Above 16 MB all values that a node reads and writes leave a core's own caches."""
    amounts = terms(op)[0].amounts  # type: ignore[arg-type]
    assert amounts.get("far") == (None if values is None else pytest.approx(values))


def test_what_runs_once_in_several_passes_is_charged_in_equal_parts() -> None:
    whole = terms(Matmul(m=4, k=64, n=10, bias=True))
    part = terms(Once(op=Matmul(m=4, k=64, n=10, bias=True), passes=4))
    assert [term.model for term in part] == [term.model for term in whole]
    for one, all_of_it in zip(part, whole, strict=True):
        assert {name: 4 * value for name, value in one.amounts.items()} == all_of_it.amounts
        assert 4 * one.streamed_bytes == all_of_it.streamed_bytes
    (cached,) = terms(AttentionOp(batch=1, query_tokens=1, past_tokens=7, heads=1, kv_heads=1, head_size=64))
    (half,) = terms(
        Once(op=AttentionOp(batch=1, query_tokens=1, past_tokens=7, heads=1, kv_heads=1, head_size=64), passes=2)
    )
    assert half.resident_bytes == cached.resident_bytes / 2 > 0
