"""Helpers for all attention blocks: the attention operator, and the head sizes that kernels accept."""

from __future__ import annotations

from functools import partial

from chipwise.errors import Unsupported
from chipwise.model.arch.mixers import Attention
from chipwise.model.ops.attention import AttentionOp


def attending(block: Attention) -> partial[AttentionOp]:
    """An attention operator with the heads of ``block``; the caller adds the batch and the numbers of tokens."""
    return partial(AttentionOp, heads=block.heads, kv_heads=block.kv_heads, head_size=block.head_size)


def check_heads(block: Attention, layer: int) -> None:
    """Checks that ONNX Runtime's MultiHeadAttention accepts heads of this size.

    Raises:
        Unsupported: It does not accept them.
    """
    if block.head_size % 8:
        raise Unsupported(
            f"layer {layer}: ONNX Runtime needs heads whose size is a multiple of 8, not {block.head_size}"
        )
