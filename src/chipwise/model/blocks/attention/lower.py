"""Attention as operators: one packed projection for q, k and v, the attention itself, the output projection."""

from __future__ import annotations

from chipwise.model.arch.mixers import Attention
from chipwise.model.ops.attention import AttentionOp
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
) -> list[tuple[str, Op]]:
    """The operators in order, each with its name inside the block.

    With ``qk_norm``, q, k and v are three projections. ``cut`` keeps only the last position of each sequence before the
    output projection, in the block's values and in the residual stream.
    """
    rows = batch * query_tokens

    def into(width: int) -> Matmul:
        return Matmul(m=rows, k=d_model, n=width, weights=weights, bias=block.qkv_bias)

    ops: list[tuple[str, Op]]
    if block.qk_norm:
        ops = [
            ("q", into(block.query_width)),
            ("q_norm", NormOp(rows=rows * block.heads, width=block.head_size)),
            ("k", into(block.kv_width)),
            ("k_norm", NormOp(rows=rows * block.kv_heads, width=block.head_size)),
            ("v", into(block.kv_width)),
        ]
    else:
        ops = [("qkv", into(block.query_width + 2 * block.kv_width))]
    attend = AttentionOp(
        batch=batch,
        query_tokens=query_tokens,
        past_tokens=past_tokens,
        heads=block.heads,
        kv_heads=block.kv_heads,
        head_size=block.head_size,
        rope=block.rope,
        window=block.window,
    )
    ops.append(("attend", attend))
    if cut:
        ops.append(("last_stream", EmbeddingOp(tokens=batch, width=d_model, rows=rows)))
        ops.append(("last", EmbeddingOp(tokens=batch, width=block.query_width, rows=rows)))
        rows = batch
    ops.append(("out", Matmul(m=rows, k=block.query_width, n=d_model, weights=weights, bias=block.out_bias)))
    return ops


def lower_encoder(
    block: Attention, *, d_model: int, weights: str, rows: int, tokens: int, first: bool = False
) -> list[tuple[str, Op]]:
    """The operators of bidirectional attention over ``rows`` positions, in sequences of ``tokens``.

    ``first`` keeps one of each ``tokens`` (of the block's values and of the residual stream) before the output
    projection.
    """
    width, kept = block.query_width, rows // tokens if first else rows
    attend = AttentionOp(
        batch=rows // tokens,
        query_tokens=tokens,
        past_tokens=0,
        heads=block.heads,
        kv_heads=block.kv_heads,
        head_size=block.head_size,
        rope=False,
        causal=False,
        biases=int(block.relative_buckets > 0),
    )
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
