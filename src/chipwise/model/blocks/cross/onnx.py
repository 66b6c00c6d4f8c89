"""Cross-attention as ONNX nodes: queries from words, packed keys and values from the image, attention, output."""

from __future__ import annotations

import numpy as np

from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.heads import check_heads
from chipwise.model.blocks.onnx_graph import MICROSOFT, GraphBuilder


def add_cross(graph: GraphBuilder, block: Attention, *, layer: int, x: str, read: str, d_model: int) -> str:
    """Cross-attention of ``x`` (B, T, D) to ``read`` (B, S, D): the block's output, without the residual.

    Raises:
        Unsupported: The runtime's kernel rejects this head size.
    """
    check_heads(block, layer)
    key, width, bias = f"layers.{layer}.cross", block.kv_width, block.qkv_bias
    query = graph.projection(f"{key}.q", x, k=d_model, parts={f"{key}.q": block.query_width}, bias=bias)
    both = {f"{key}.k": width, f"{key}.v": width}
    packed = graph.projection(f"{key}.kv", read, k=d_model, parts=both, key=f"{key}.kv", bias=bias)
    halves = graph.store(f"halves.{width}", lambda: np.full(2, width, np.int64))
    parts = [f"{key}.{name}" for name in ("key", "value")]
    graph.node("Split", [packed, halves], parts, axis=-1)
    heads = graph.node("MultiHeadAttention", [query, *parts], f"{key}.attend", domain=MICROSOFT, num_heads=block.heads)
    out = {f"{key}.out": d_model}
    return graph.projection(f"{key}.out", heads, k=block.query_width, parts=out, bias=block.out_bias)
