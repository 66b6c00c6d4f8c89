"""What an operator's time grows with, by pencil."""

from __future__ import annotations

import pytest

from chipwise.cost.terms import terms
from chipwise.ops import AttentionOp, Matmul


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
