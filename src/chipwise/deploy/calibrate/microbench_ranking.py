"""Small graphs of the nodes that only ranking models have, built by the blocks that build the models.

A case is a :class:`chipwise.deploy.calibrate.microbench.Case`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.model.arch.mixers import Attention
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.op import Op
from chipwise.model.ops.ranking import EmbeddingBagOp, RequestAttentionOp, RowDotOp

if TYPE_CHECKING:
    from chipwise.deploy.calibrate.microbench import Case
    from chipwise.model.blocks.onnx_graph import GraphBuilder

ATTENTION = tuple(f"attention.{kind}.{place}" for kind in ("softmax", "pointwise") for place in ("whole", "last"))
RANKING_KINDS = (*ATTENTION, "bag", "dot", "copy")


Given = Callable[[str, AnyArray], str]
Result = Callable[..., None]
Arrays = dict[str, AnyArray]  # inputs or outputs of a graph, by name


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
    """The operator of a case: ``rows`` candidates after ``past`` items, or ``rows`` of ``k`` values (bags of ``n``)."""
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
    """Fields of the cases of a calibration."""
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
            (17, 32, 96),
            (51, 64, 192),
            (128, 128, 64),
            (178, 64, 256),
            (562, 48, 192),
            (2_048, 64, 64),
            (6_528, 32, 96),
            (26_112, 64, 192),
        ):
            yield {"kind": "matmul", "weights": weights, "count": 4, "rows": rows, "k": k, "n": n}


def add_ranking_nodes(
    graph: GraphBuilder,
    case: Case,
    generator: np.random.Generator,
    feeds: Arrays,
    outputs: Arrays,
) -> None:
    """Adds a case's nodes to ``graph``, side by side, and their inputs and outputs to ``feeds`` and ``outputs``."""
    from onnx import helper

    def given(name: str, value: AnyArray) -> str:
        graph.input(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        feeds[name] = value
        return name

    def result(name: str, *shape: int) -> None:
        graph.output(name, shape)
        outputs[name] = np.empty(shape, np.float32)

    if case.kind in ATTENTION:
        _attention(graph, case, generator, given, result)
        return
    shape = (1, case.rows, case.k)
    if case.kind == "bag":
        table = graph.store("table", lambda: np.zeros((100, case.k), np.float32))
        x = given("x", generator.integers(0, 100, (1, case.rows, case.n)))
    else:
        x = given("x", generator.standard_normal(shape, dtype=np.float32))
    ints = {value: graph.store(f"int.{value}", partial(np.full, 1, value, np.int64)) for value in (-1, 0, 2)}
    for i in range(case.count):
        y = f"y{i}"
        if case.kind == "bag":
            rows = graph.node("Gather", [table, x], f"{y}.rows", axis=0)
            graph.node("ReduceSum", [rows, ints[2]], y, keepdims=0)
            result(y, *shape)
        elif case.kind == "dot":
            product = graph.node("Mul", [x, x], f"{y}.product")
            graph.node("ReduceSum", [product, ints[-1]], y, keepdims=0)
            result(y, *shape[:2])
        else:
            end = graph.store("end", lambda: np.array([case.rows - 1], np.int64))
            one = graph.store("one", lambda: np.array([1], np.int64))
            graph.node("Slice", [x, ints[0], end, one], y)
            result(y, 1, case.rows - 1, case.k)


def _attention(graph: GraphBuilder, case: Case, generator: np.random.Generator, given: Given, result: Result) -> None:
    from chipwise.model.kinds.ranking.candidates.onnx import add_heads

    _, kind, place = case.kind.split(".")
    block = Attention(
        heads=case.heads,
        kv_heads=case.heads,
        head_size=case.head_size,
        rope=False,
        relative_buckets=case.past + 1,
        pointwise=kind == "pointwise",
    )
    tokens, parts, last = case.past + case.rows, 4 if block.pointwise else 3, place == "last"
    shape = (case.batch, tokens, parts * block.query_width)
    packed = given("packed", generator.standard_normal(shape, dtype=np.float32))
    given("candidates", np.zeros((case.batch, case.rows), np.int64))
    table = np.zeros((case.heads, case.past + 1, case.past + 1), np.float32)
    asking = case.rows if last else tokens
    for i in range(case.count):
        names = add_heads(graph, block, case.past, place=f"y{i}", packed=[packed], bias=lambda: table, last=last)
        for name in filter(None, names):
            result(name, case.batch, asking, block.query_width)
