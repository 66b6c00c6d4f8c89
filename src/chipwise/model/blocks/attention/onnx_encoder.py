"""Bidirectional attention as ONNX nodes: packed projection, MultiHeadAttention, output projection."""

from __future__ import annotations

import numpy as np

from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.heads import check_heads
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

    ``bias`` (1, heads, T, T) is added to the scores. ``mask`` is an int32 tensor (B, T) with 0 at padding.

    Raises:
        Unsupported: The runtime's kernel rejects this head size.
    """
    check_heads(block, layer)
    place = f"layers.{layer}.attention"
    width = block.query_width
    each = dict.fromkeys((f"{place}.{name}" for name in "qkv"), width)
    packed = graph.projection(f"{place}.qkv", x, k=d_model, parts=each, key=f"{place}.qkv", bias=block.qkv_bias)
    thirds = graph.store(f"thirds.{width}", lambda: np.full(3, width, np.int64))
    parts = [f"{place}.{name}" for name in ("query", "key", "value")]
    graph.node("Split", [packed, thirds], parts, axis=-1)
    further = [] if mask is bias is None else ["", mask or ""] if bias is None else ["", mask or "", bias]
    inputs = [*parts, *further]
    return graph.node("MultiHeadAttention", inputs, f"{place}.attend", domain=MICROSOFT, num_heads=block.heads)
