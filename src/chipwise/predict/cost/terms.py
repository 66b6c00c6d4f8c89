"""Features from which an operator's time is computed: calibration fits a rate for each, and prediction uses the rates.

Each operator has one or two *terms*. A term consists of the name of a rate model, the amounts of that model's features,
and streamed bytes. Time is linear in the features; the time per streamed byte depends on the working set of the whole
pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from chipwise.core.dtypes import Size, values_bytes
from chipwise.errors import Unsupported
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.matmul import ConvOp, Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.once import Once
from chipwise.model.ops.op import Op
from chipwise.model.ops.pool import PoolOp
from chipwise.model.ops.ranking import EmbeddingBagOp, RequestAttentionOp, RowDotOp

ROW_STEPS = {"fp32": 64, "int4": 128}
"""Number of values of a weight row that a kernel processes at once; the remaining values may cost more. With AVX-512,
llama.cpp's FP32 dot product processes 64 values at once, and the remaining values one by one. ONNX Runtime's int4
matrix products process four blocks of 32 values at once."""
FAR_BYTES = (1e6, 1.6e7)
"""Bytes of a node's FP32 values: below the first number, all fit in a core's private caches; above the second, none.
Among several pairs, this pair gave the least error on nodes outside the fit (ranking models, batches of 1 to 512)."""
HEAD_STEP = 64  # the number of values at once for a head's keys, which llama.cpp multiplies as FP32 rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """Feature amounts and streamed bytes. ``model`` names the rate model and the bandwidth curve for streamed bytes."""

    model: str
    amounts: Mapping[str, float] = field(default_factory=dict)
    streamed_bytes: float = 0.0
    resident_bytes: float = 0.0  # bytes that count in the working set, while their time is already in the amounts


def far(values: Size) -> dict[str, Size]:
    """Feature ``far``: how many of a node's FP32 values do not fit in a core's private caches; ``{}`` if all fit."""
    held_bytes = float(4 * values)
    if held_bytes <= FAR_BYTES[0]:
        return {}
    return {"far": values * min(1.0, math.log(held_bytes / FAR_BYTES[0]) / math.log(FAR_BYTES[1] / FAR_BYTES[0]))}


def terms(op: Op) -> list[Term]:
    """The terms (rate models with amounts of their features) from which the time of ``op`` is computed.

    Raises:
        Unsupported: The kind of operator is unknown.
    """
    for kind, function in _KINDS.items():
        if isinstance(op, kind):
            return function(op)
    raise Unsupported(f"no cost is known for operators of kind {op.kind}")


def _term(model: str, amounts: Mapping[str, Size], *, streamed_bytes: Size = 0, resident_bytes: Size = 0) -> Term:
    return Term(
        model=model,
        amounts={name: float(amount) for name, amount in amounts.items()},
        streamed_bytes=float(streamed_bytes),
        resident_bytes=float(resident_bytes),
    )


def _matmul(op: Matmul) -> list[Term]:
    shape = "vector" if op.m == 1 else "matrix"
    amounts: dict[str, Size] = {"node": 1, "in": op.m * op.k, "out": op.m * op.n}
    if op.m > 1:
        amounts |= {"products": op.m * op.k * op.n, **far(op.m * (op.k + op.n))}
    if op.weights in ROW_STEPS:
        amounts["rest"] = op.m * op.n * (op.k % ROW_STEPS[op.weights])
    found = [
        _term(
            f"matmul.{op.weights}.{shape}",
            amounts,
            streamed_bytes=op.format.matrix_bytes(op.k, op.n),
        )
    ]
    if op.bias and op.weights == "fp32":  # a separate node; quantised kernels add the bias themselves
        found += _elementwise(Elementwise(function="add", elements=op.m * op.n, inputs=2))
    return found


def _attention(op: AttentionOp) -> list[Term]:
    keys = op.past_tokens if op.cross else op.query_tokens  # keys of this pass
    seen = op.past_tokens if op.cross else op.past_tokens + op.query_tokens
    if op.window is not None:
        seen = min(seen, op.window + op.query_tokens - 1)
    rows = op.batch * op.query_tokens
    scores = rows * op.heads * seen
    amounts: dict[str, Size] = {
        "node": 1,
        "head": op.batch * op.heads,
        "score": scores,
        "product": scores * op.head_size,
        "value": op.batch * (op.query_tokens * op.heads + 2 * keys * op.kv_heads) * op.head_size,
        "rest": rows * op.heads * (op.head_size % HEAD_STEP),
    }
    if op.rope:
        amounts["rotated"] = rows * (op.heads + op.kv_heads) * op.head_size
    if not op.causal:  # bidirectional attention uses another kernel
        amounts["query"] = rows * op.heads
        return [_term("attention.biased" if op.biases else "attention.full", amounts)]
    if op.query_tokens > 1:  # work that does not depend on the mask: caches are read in whole blocks
        amounts["query"] = rows * op.heads
    shape = "step" if op.query_tokens == 1 else "prompt"
    cache = values_bytes(2 * op.batch * seen * op.kv_heads * op.head_size, op.cache)
    return [_term(f"attention.{shape}", amounts, resident_bytes=cache)]


def _norm(op: NormOp) -> list[Term]:
    values = float(op.rows * op.width)
    amounts: dict[str, Size] = {"node": 1.0, "row": float(op.rows), "value": values, **far(2 * values)}
    if op.norm == "rmsnorm":
        return [_term("norm.skip_rmsnorm" if op.skip else "norm.rmsnorm", amounts)]
    found = [_term("norm.layernorm", amounts)]
    if op.skip:
        found += _elementwise(Elementwise(function="add", elements=op.rows * op.width, inputs=2))
    return found


def _elementwise(op: Elementwise) -> list[Term]:
    return [
        _term(
            f"elementwise.{op.function}",
            {"node": 1, "value": op.elements, **far(2 * op.elements)},
        )
    ]


def _embedding(op: EmbeddingOp) -> list[Term]:
    values = op.tokens * op.width
    return [_term("gather", {"node": 1, "row": op.tokens, "value": values, **far(2 * values)})]


def _conv(op: ConvOp) -> list[Term]:
    values = op.batch * op.positions * op.out_channels
    if op.groups == 1:  # patches of an image are copied, then multiplied
        taken = op.batch * op.positions * op.in_channels * op.taps
        amounts: dict[str, Size] = {"node": 1, "in": taken, "out": values, "products": taken * op.out_channels}
        return [_term("conv.image", amounts)]
    model = "conv.centred" if op.centred else "conv"
    return [_term(model, {"node": 1, "value": values, "tap": values * op.taps})]


def _pool(op: PoolOp) -> list[Term]:
    return [_term("pool", {"node": 1, "value": op.batch * op.positions * op.width})]


def _bag(op: EmbeddingBagOp) -> list[Term]:
    rows = op.bags * op.ids
    return [_term("bag", {"node": 1, "row": rows, "value": rows * op.width, **far(rows * op.width)})]


def _request_attention(op: RequestAttentionOp) -> list[Term]:
    """The terms of attention within a ranking request: transposing to heads and back, and computing the scores."""
    rows, width = op.batch * op.queries, op.heads * op.head_size
    scores = rows * op.heads * (op.history + 1)
    moved = op.batch * op.positions * width
    amounts = {
        "node": 1,
        "head": op.batch * op.heads,
        "row": rows * op.heads,
        "score": scores,
        "product": scores * op.head_size,
        "value": rows * width,
        "moved": moved,
        **far(scores + 4 * moved),
    }
    kind = "pointwise" if op.pointwise else "softmax"
    return [_term(f"attention.{kind}.{'whole' if op.whole else 'last'}", amounts)]


def _row_dot(op: RowDotOp) -> list[Term]:
    return [
        _term(
            "dot",
            {"node": 1, "row": op.rows, "value": op.rows * op.width, **far(op.rows * op.width)},
        )
    ]


def _once(op: Once) -> list[Term]:
    """The terms of an operator that runs only once in several passes; amounts are divided by the number of passes."""
    return [
        replace(
            term,
            amounts={name: amount / op.passes for name, amount in term.amounts.items()},
            resident_bytes=term.resident_bytes / op.passes,
            streamed_bytes=term.streamed_bytes / op.passes,
        )
        for term in terms(op.op)
    ]


_KINDS: dict[type, Callable[[Any], list[Term]]] = {
    Matmul: _matmul,
    AttentionOp: _attention,
    NormOp: _norm,
    Elementwise: _elementwise,
    EmbeddingOp: _embedding,
    ConvOp: _conv,
    PoolOp: _pool,
    EmbeddingBagOp: _bag,
    RequestAttentionOp: _request_attention,
    RowDotOp: _row_dot,
    Once: _once,
}
