"""Calibration cases for nodes that only ranking models have.

See :class:`chipwise.deploy.calibrate.microbench.Case`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypedDict

from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.op import Op
from chipwise.model.ops.ranking import EmbeddingBagOp, RequestAttentionOp, RowDotOp

if TYPE_CHECKING:
    from chipwise.deploy.calibrate.microbench import Case

ATTENTION = tuple(f"attention.{kind}.{place}" for kind in ("softmax", "pointwise") for place in ("whole", "last"))
RANKING_KINDS = (*ATTENTION, "bag", "dot", "copy")


class CaseFields(TypedDict, total=False):
    """Fields of a :class:`chipwise.deploy.calibrate.microbench.Case`."""

    kind: str
    weights: str
    count: int
    rows: int
    k: int
    n: int
    past: int
    batch: int
    heads: int
    kv_heads: int
    head_size: int


def ranking_op(case: Case) -> Op:
    """Operator of a case: ``rows`` candidates after ``past`` items, or ``rows`` of ``k`` values (bags of ``n``)."""
    if case.kind in ATTENTION:
        _, kind, place = case.kind.split(".")
        return RequestAttentionOp(
            batch=case.batch,
            history=case.past,
            candidates=case.rows,
            heads=case.heads,
            head_size=case.head_size,
            whole=place == "whole",
            pointwise=kind == "pointwise",
        )
    if case.kind == "bag":
        return EmbeddingBagOp(bags=case.rows, ids=case.n, width=case.k, rows=100)
    if case.kind == "dot":
        return RowDotOp(rows=case.rows, width=case.k)
    return Elementwise(function="copy", elements=case.rows * case.k)


def ranking_cases() -> Iterator[CaseFields]:
    """Fields of all cases of a calibration."""
    for kind in ATTENTION:
        for batch, past, rows, heads, head_size in (
            (1, 16, 1, 1, 16), (1, 50, 1, 2, 32), (1, 100, 4, 4, 64), (1, 50, 32, 2, 32), (1, 16, 128, 2, 64),
            (1, 50, 128, 1, 32), (1, 50, 128, 4, 16), (1, 100, 32, 2, 32), (1, 50, 512, 2, 32), (1, 100, 512, 1, 64),
            (8, 100, 1, 4, 32), (32, 50, 1, 2, 32), (128, 16, 1, 1, 32), (128, 50, 1, 2, 16),
            (1, 50, 1, 4, 8), (8, 50, 1, 4, 16), (32, 50, 1, 1, 8), (128, 50, 1, 4, 16), (512, 50, 1, 1, 64),
            (512, 50, 1, 2, 8),
        ):  # fmt: skip
            yield CaseFields(kind=kind, count=2, batch=batch, past=past, rows=rows, heads=heads, head_size=head_size)
    for rows, width in ((17, 24), (51, 64), (178, 32), (178, 128), (562, 64), (6_528, 32), (26_112, 64)):
        yield {"kind": "bag", "count": 2, "rows": rows, "k": width, "n": 3}
        yield {"kind": "copy", "count": 8, "rows": rows, "k": width}
        yield {"kind": "dot", "count": 4, "rows": rows, "k": width}
        yield {"kind": "gather", "count": 4, "rows": rows, "k": width, "n": 4096}
        for kind in ("rmsnorm", "skip_rmsnorm", "layernorm", "mul", "add", "silu", "gelu", "relu"):
            yield {"kind": kind, "count": 4, "rows": rows, "k": width}
    for weights in ("fp32", "int8"):
        for rows, k, n in (
            (17, 32, 96), (51, 64, 192), (128, 128, 64), (178, 64, 256), (562, 48, 192), (2_048, 64, 64),
            (6_528, 32, 96), (26_112, 64, 192),
        ):  # fmt: skip
            yield {"kind": "matmul", "weights": weights, "count": 4, "rows": rows, "k": k, "n": n}
