"""Cross-attention as operators: queries from the words, packed keys and values from the image, attention, output."""

from __future__ import annotations

from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.heads import attending
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.op import Op


def lower_cross(
    block: Attention, *, d_model: int, weights: str, batch: int, query_tokens: int, read_tokens: int
) -> list[tuple[str, Op]]:
    """The operators without the norm. Per request, ``query_tokens`` words attend to ``read_tokens`` image tokens."""
    rows, read = batch * query_tokens, batch * read_tokens
    attend = attending(block)(
        batch=batch, query_tokens=query_tokens, past_tokens=read_tokens, rope=False, causal=False, cross=True
    )
    kv = 2 * block.kv_width
    return [
        ("q", Matmul(m=rows, k=d_model, n=block.query_width, weights=weights, bias=block.qkv_bias)),
        ("kv", Matmul(m=read, k=d_model, n=kv, weights=weights, bias=block.qkv_bias)),
        ("split", Elementwise(function="split", elements=read * kv)),
        ("attend", attend),
        ("out", Matmul(m=rows, k=block.query_width, n=d_model, weights=weights, bias=block.out_bias)),
    ]
