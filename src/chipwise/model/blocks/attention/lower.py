"""Attention as operators: one packed projection for q, k and v, the attention itself, the output projection."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.heads import attending
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.op import Op


def lower(
    block: Attention,
    *,
    d_model: int,
    weights: str,
    batch: int,
    query_tokens: int,
    past_tokens: int,
    cut: bool = False,
) -> Iterator[tuple[str, Op]]:
    """The operators in order, each with its name inside the block.

    With ``qk_norm``, q, k and v are three separate projections. With ``cut``, two operators before the output
    projection select the last position of each sequence: one from the attention's result, one from the residual stream.
    """
    rows = batch * query_tokens

    def into(width: int) -> Matmul:
        return Matmul(m=rows, k=d_model, n=width, weights=weights, bias=block.qkv_bias)

    if block.qk_norm:
        yield "q", into(block.query_width)
        yield "q_norm", NormOp(rows=rows * block.heads, width=block.head_size)
        yield "k", into(block.kv_width)
        yield "k_norm", NormOp(rows=rows * block.kv_heads, width=block.head_size)
        yield "v", into(block.kv_width)
    else:
        yield "qkv", into(block.query_width + 2 * block.kv_width)
    attend = attending(block)(
        batch=batch, query_tokens=query_tokens, past_tokens=past_tokens, rope=block.rope, window=block.window
    )
    yield "attend", attend
    if cut:
        yield "last_stream", EmbeddingOp(tokens=batch, width=d_model, rows=rows)
        yield "last", EmbeddingOp(tokens=batch, width=block.query_width, rows=rows)
        rows = batch
    yield "out", Matmul(m=rows, k=block.query_width, n=d_model, weights=weights, bias=block.out_bias)


def lower_encoder(
    block: Attention, *, d_model: int, weights: str, rows: int, tokens: int, first: bool = False
) -> list[tuple[str, Op]]:
    """The operators of bidirectional attention over sequences of length ``tokens``, ``rows`` positions in total.

    With ``first``, two operators before the output projection select the first position of each sequence: one from the
    attention's result, one from the residual stream.
    """
    width, batch, biases = block.query_width, rows // tokens, int(block.relative_buckets > 0)
    kept = batch if first else rows
    attend = attending(block)(batch=batch, query_tokens=tokens, past_tokens=0, rope=False, causal=False, biases=biases)
    cut = [
        ("first_stream", EmbeddingOp(tokens=kept, width=d_model, rows=rows)),
        ("first", EmbeddingOp(tokens=kept, width=width, rows=rows)),
    ]
    return [
        ("qkv", Matmul(m=rows, k=d_model, n=3 * width, weights=weights, bias=block.qkv_bias)),
        ("split", Elementwise(function="split", elements=3 * rows * width)),
        ("attend", attend),
        *(cut if first else ()),
        ("out", Matmul(m=kept, k=width, n=d_model, weights=weights, bias=block.out_bias)),
    ]
