"""Attention as ONNX nodes: packed projection, GroupQueryAttention with its cache, output projection.

The same buffer may serve as the cache's input (past) and output (present); then a decode step does not copy the cache.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from chipwise.core.arrays import AnyArray
from chipwise.errors import Unsupported
from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.onnx_graph import MICROSOFT, GraphBuilder

HeadNorm = Callable[..., str]


def rotary_tables(head_size: int, max_tokens: int, theta: float) -> tuple[AnyArray, AnyArray]:
    """Cosines and sines of the rotary angles of all positions, each (max_tokens, head_size / 2) in FP32."""
    frequency = theta ** (-np.arange(0, head_size, 2, dtype=np.float64) / head_size)
    angle = np.outer(np.arange(max_tokens, dtype=np.float64), frequency)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def add_attention(
    graph: GraphBuilder,
    block: Attention,
    *,
    layer: int,
    key: str,
    x: str,
    d_model: int,
    max_tokens: int,
    rope_theta: float,
    head_norm: HeadNorm,
) -> str:
    """Attention's result for ``x``, before the output projection: (B, T, heads * head_size).

    ``key`` is the prefix of the weights' names (``layers.0.attention``). If the weights belong to another
    layer, ``key`` is the prefix of that layer.
    ``head_norm(place, key, x, heads=…, head_size=…)`` adds the norm of each head of the queries or keys.

    Raises:
        Unsupported: The runtime's kernel rejects this head size.
    """
    multiple = 16 if block.rope else 8
    if block.head_size % multiple:
        kind = "rotary heads" if block.rope else "heads"
        raise Unsupported(
            f"layer {layer}: ONNX Runtime needs {kind} whose size is a multiple of {multiple}, not {block.head_size}"
        )
    place = f"layers.{layer}.attention"
    q, kv = block.query_width, block.kv_width
    if block.qk_norm:
        parts = []
        for name, width, heads in (("q", q, block.heads), ("k", kv, block.kv_heads), ("v", kv, 0)):
            one = {f"{key}.{name}": width}
            part = graph.projection(f"{place}.{name}", x, k=d_model, parts=one, bias=block.qkv_bias)
            if heads:
                norm = f"{name}_norm"
                part = head_norm(f"{place}.{norm}", f"{key}.{norm}", part, heads=heads, head_size=block.head_size)
            parts.append(part)
    else:
        each = {f"{key}.q": q, f"{key}.k": kv, f"{key}.v": kv}
        packed = graph.projection(f"{place}.qkv", x, k=d_model, parts=each, key=f"{key}.qkv", bias=block.qkv_bias)
        parts = [packed, "", ""]
    shape: list[int | str] = ["batch", block.kv_heads, "kept", block.head_size]
    past = [graph.input(f"past.{layer}.{name}", TensorProto.FLOAT, shape) for name in ("key", "value")]
    present = [f"present.{layer}.{name}" for name in ("key", "value")]
    for name in present:
        graph.output(name, shape)
    angles = []
    if block.rope:
        size = block.head_size
        cos, sin = f"rotary.{size}.cos", f"rotary.{size}.sin"
        if cos not in graph.stored:
            tables = rotary_tables(size, max_tokens, rope_theta)
            graph.store(cos, lambda: tables[0])
            graph.store(sin, lambda: tables[1])
        angles = [cos, sin]
    window = {} if block.window is None else {"local_window_size": block.window}
    return graph.node(
        "GroupQueryAttention",
        [*parts, *past, "seqlens_k", "total_sequence_length", *angles],
        [f"{place}.attend", *present],
        domain=MICROSOFT,
        num_heads=block.heads,
        kv_num_heads=block.kv_heads,
        do_rotary=int(block.rope),
        rotary_interleaved=0,
        **window,
    )


def add_output(graph: GraphBuilder, block: Attention, *, layer: int, key: str, x: str, d_model: int) -> str:
    """The output projection of ``x``, without the residual."""
    place, parts = f"layers.{layer}.attention.out", {f"{key}.out": d_model}
    return graph.projection(place, x, k=block.query_width, parts=parts, bias=block.out_bias)
