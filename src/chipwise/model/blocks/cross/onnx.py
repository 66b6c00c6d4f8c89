"""Cross-attention as ONNX nodes: queries from words, packed keys and values from the image, attention, output."""

from __future__ import annotations

import numpy as np

from chipwise.errors import Unsupported
from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.onnx_graph import MICROSOFT, GraphBuilder


def add_cross(graph: GraphBuilder, block: Attention, *, layer: int, x: str, read: str, d_model: int) -> str:
    """The block's output for ``x`` (B, T, D), which attends to ``read`` (B, S, D), without the residual.

    Raises:
        Unsupported: The runtime's kernel rejects this head size.
    """
    if block.head_size % 8:
        raise Unsupported(
            f"layer {layer}: ONNX Runtime takes heads whose size is a multiple of 8, not {block.head_size}"
        )
    key, width, bias = f"layers.{layer}.cross", block.kv_width, block.qkv_bias
    query = graph.projection(
        f"{key}.q", x, parts=[f"{key}.q"], key=f"{key}.q", k=d_model, widths=[block.query_width], bias=bias
    )
    packed = graph.projection(
        f"{key}.kv",
        read,
        parts=[f"{key}.k", f"{key}.v"],
        key=f"{key}.kv",
        k=d_model,
        widths=[width, width],
        bias=bias,
    )
    halves = graph.store(f"halves.{width}", lambda: np.full(2, width, np.int64))
    parts = [f"{key}.{name}" for name in ("key", "value")]
    graph.node("Split", [packed, halves], parts, axis=-1)
    heads = graph.node("MultiHeadAttention", [query, *parts], f"{key}.attend", domain=MICROSOFT, num_heads=block.heads)
    return graph.projection(
        f"{key}.out",
        heads,
        parts=[f"{key}.out"],
        key=f"{key}.out",
        k=block.query_width,
        widths=[d_model],
        bias=block.out_bias,
    )
