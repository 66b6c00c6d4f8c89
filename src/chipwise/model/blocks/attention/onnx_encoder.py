"""Bidirectional attention as ONNX nodes: packed projection, MultiHeadAttention, output projection."""

from __future__ import annotations

import numpy as np

from chipwise.errors import Unsupported
from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.onnx_graph import MICROSOFT, GraphBuilder


def add_heads(
    graph: GraphBuilder,
    block: Attention,
    *,
    layer: int,
    x: str,
    d_model: int,
    mask: str | None,
    bias: str | None = None,
) -> str:
    """Attention's result for ``x``, before the output projection: (B, T, heads * head_size).

    ``bias`` (1, heads, T, T) is added to the scores of pairs; ``mask`` is an int32 (B, T) with 0 at padding.

    Raises:
        Unsupported: The runtime's kernel rejects this head size.
    """
    if block.head_size % 8:
        raise Unsupported(
            f"layer {layer}: ONNX Runtime takes heads whose size is a multiple of 8, not {block.head_size}"
        )
    key = place = f"layers.{layer}.attention"
    width = block.query_width
    packed = graph.projection(
        f"{place}.qkv",
        x,
        parts=[f"{key}.q", f"{key}.k", f"{key}.v"],
        key=f"{key}.qkv",
        k=d_model,
        widths=[width] * 3,
        bias=block.qkv_bias,
    )
    thirds = graph.store(f"thirds.{width}", lambda: np.full(3, width, np.int64))
    parts = [f"{place}.{name}" for name in ("query", "key", "value")]
    graph.node("Split", [packed, thirds], parts, axis=-1)
    further = [] if mask is bias is None else ["", mask or ""] if bias is None else ["", mask or "", bias]
    return graph.node(
        "MultiHeadAttention",
        [*parts, *further],
        f"{place}.attend",
        domain=MICROSOFT,
        num_heads=block.heads,
    )
