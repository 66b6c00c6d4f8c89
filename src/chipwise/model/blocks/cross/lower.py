"""Cross-attention as operators: queries from the words, packed keys and values from the image, attention, output."""

from __future__ import annotations

from chipwise.model.arch.mixers import Attention
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.op import Op


def lower_cross(
    block: Attention, *, d_model: int, weights: str, batch: int, query_tokens: int, read_tokens: int
) -> list[tuple[str, Op]]:
    """The operators in order, without the norm: ``query_tokens`` positions per request read ``read_tokens`` others."""
    rows, read = batch * query_tokens, batch * read_tokens
    attend = AttentionOp(
        batch=batch,
        query_tokens=query_tokens,
        past_tokens=read_tokens,
        heads=block.heads,
        kv_heads=block.kv_heads,
        head_size=block.head_size,
        rope=False,
        causal=False,
        cross=True,
    )
    kv = 2 * block.kv_width
    return [
        ("q", Matmul(m=rows, k=d_model, n=block.query_width, weights=weights, bias=block.qkv_bias)),
        ("kv", Matmul(m=read, k=d_model, n=kv, weights=weights, bias=block.qkv_bias)),
        ("split", Elementwise(function="split", elements=read * kv)),
        ("attend", attend),
        ("out", Matmul(m=rows, k=block.query_width, n=d_model, weights=weights, bias=block.out_bias)),
    ]
