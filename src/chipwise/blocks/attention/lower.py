"""Attention as operators: one packed projection for q, k and v, the attention itself, the output projection."""

from __future__ import annotations

from chipwise.ops import AttentionOp, Matmul, NormOp, Op
from chipwise.spec import Attention


def lower(
    block: Attention, *, d_model: int, weights: str, batch: int, query_tokens: int, past_tokens: int
) -> list[tuple[str, Op]]:
    """The operators in order, each with its name inside the block."""
    rows = batch * query_tokens
    ops: list[tuple[str, Op]] = [
        (
            "qkv",
            Matmul(
                m=rows, k=d_model, n=block.query_width + 2 * block.kv_width, weights=weights, bias=block.qkv_bias
            ),
        )
    ]
    if block.qk_norm:
        ops.append(("q_norm", NormOp(rows=rows * block.heads, width=block.head_size)))
        ops.append(("k_norm", NormOp(rows=rows * block.kv_heads, width=block.head_size)))
    ops.append(
        (
            "attend",
            AttentionOp(
                batch=batch,
                query_tokens=query_tokens,
                past_tokens=past_tokens,
                heads=block.heads,
                kv_heads=block.kv_heads,
                head_size=block.head_size,
                rope=block.rope,
                window=block.window,
            ),
        )
    )
    ops.append(("out", Matmul(m=rows, k=block.query_width, n=d_model, weights=weights, bias=block.out_bias)))
    return ops
