"""Item embeddings, attention over a request, and scores of candidates as operators."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.ranking.stem import RankingStem, Scores
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.op import Op
from chipwise.model.ops.ranking import EmbeddingBagOp, RequestAttentionOp, RowDotOp


def lower_items(
    arch: ArchSpec, stem: RankingStem, *, weights: str, batch: int, joined: bool = False
) -> Iterator[tuple[str, Op]]:
    """The operators from the items of ``batch`` requests to the residual stream.

    With ``joined``, items and tags are looked up in one table, which is possible only if their embeddings are added
    (not concatenated).
    """
    rows, width = batch * stem.tokens, stem.table_width(arch.d_model)
    if joined and stem.bag and not stem.width:
        ids = rows * (1 + stem.bag)
        bag = EmbeddingBagOp(bags=rows, ids=1 + stem.bag, width=width, rows=stem.items + stem.tags + 2)
        yield "moved", Elementwise(function="add", elements=rows * stem.bag)
        yield "ids", Elementwise(function="copy", elements=ids)
        yield "rows", bag
        return
    yield "items", EmbeddingOp(tokens=rows, width=width, rows=stem.items + 1)
    if stem.bag:
        yield "tags", EmbeddingBagOp(bags=rows, ids=stem.bag, width=width, rows=stem.tags + 1)
        if stem.width:
            yield "features", Elementwise(function="copy", elements=2 * rows * width)
        else:
            yield "features", Elementwise(function="add", elements=rows * width, inputs=2)
    if stem.width:
        yield "projection", Matmul(m=rows, k=stem.values, n=arch.d_model, weights=weights, bias=stem.bias)


def lower_attention(
    block: Attention, stem: RankingStem, d_model: int, weights: str, *, batch: int, last: bool, joined: bool = True
) -> Iterator[tuple[str, Op]]:
    """The operators of attention over requests, without the norm. If ``last``, only candidates are output.

    With ``joined``, all projections are one matrix product. The operator ``attend`` includes the transposition of its
    inputs, which splits them into heads; the cost of this transposition does not depend on ``joined``.
    """
    rows, width, parts = batch * stem.tokens, block.query_width, 4 if block.pointwise else 3
    asking = batch * stem.candidates if last else rows
    names = ["qkv"] if joined else ["q", "k", "v", "gate"][:parts]
    each = parts * width // len(names)
    for name in names:
        yield name, Matmul(m=rows, k=d_model, n=each, weights=weights, bias=block.qkv_bias)
        if block.pointwise:
            yield f"{name}.activation", Elementwise(function="silu", elements=rows * each)
    attend = RequestAttentionOp(
        batch=batch,
        history=stem.history,
        candidates=stem.candidates,
        heads=block.heads,
        head_size=block.head_size,
        whole=not last,
        pointwise=block.pointwise,
    )
    yield "attend", attend
    if last:
        yield "candidates", Elementwise(function="copy", elements=asking * d_model)
    if block.pointwise:
        yield "norm", NormOp(rows=asking, width=width)
        yield "gate", Elementwise(function="mul", elements=asking * width, inputs=2)
    yield "out", Matmul(m=asking, k=width, n=d_model, weights=weights, bias=block.out_bias)


def lower_scores(arch: ArchSpec, stem: RankingStem, *, weights: str, batch: int) -> list[tuple[str, Op]]:
    """The operators that score candidates from their normed states."""
    rows = batch * stem.candidates
    if isinstance(arch.head, Scores):
        return [("scores", Matmul(m=rows, k=arch.d_model, n=1, weights=weights, bias=True))]
    return [
        ("candidates", Elementwise(function="copy", elements=rows * arch.d_model)),
        ("scores", RowDotOp(rows=rows, width=arch.d_model)),
    ]
