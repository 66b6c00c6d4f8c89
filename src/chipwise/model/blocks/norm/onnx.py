"""A norm as ONNX nodes, with the residual addition before it."""

from __future__ import annotations

import numpy as np

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.onnx_graph import MICROSOFT, GraphBuilder


def add_norm(graph: GraphBuilder, arch: ArchSpec, place: str, key: str, x: str, skip: str | None) -> tuple[str, str]:
    """Adds ``skip`` (a block's output, if any) to ``x``, and normalises the sum; returns (normed, sum).

    For RMSNorm, one node does both. LayerNorm takes two: ONNX Runtime's SkipLayerNormalization is scalar code and
    slower than two nodes.
    """
    weight = graph.tensor(f"{key}.weight", arch.d_model)
    if arch.norm == "rmsnorm" and skip is not None:
        normed, total = f"{place}.out", f"{place}.sum"
        graph.node(
            "SkipSimplifiedLayerNormalization",
            [x, skip, weight],
            [normed, "", "", total],
            domain=MICROSOFT,
            epsilon=arch.norm_eps,
        )
        return normed, total
    if skip is not None:
        x = graph.node("Add", [x, skip], f"{place}.sum")
    return _norm(graph, arch, place, key, x, weight), x


def add_head_norm(graph: GraphBuilder, place: str, key: str, x: str, *, heads: int, head_size: int, eps: float) -> str:
    """Applies RMSNorm to each head of ``x`` (B, T, heads * head_size) separately."""
    split = graph.store(f"shape.{heads}x{head_size}", lambda: np.array([0, 0, heads, head_size], np.int64))
    joined = graph.store(f"shape.{heads * head_size}", lambda: np.array([0, 0, heads * head_size], np.int64))
    per_head = graph.node("Reshape", [x, split], f"{place}.heads")
    normed = add_rms_norm(graph, per_head, graph.tensor(f"{key}.weight", head_size), f"{place}.normed", eps)
    return graph.node("Reshape", [normed, joined], f"{place}.out")


def add_rms_norm(graph: GraphBuilder, x: str, weight: str, place: str, eps: float) -> str:
    """Applies RMSNorm to ``x`` over its last axis."""
    settings = {"axis": -1, "epsilon": eps, "stash_type": 1}
    return graph.node("SimplifiedLayerNormalization", [x, weight], place, **settings)


def _norm(graph: GraphBuilder, arch: ArchSpec, place: str, key: str, x: str, weight: str) -> str:
    if arch.norm == "rmsnorm":
        return add_rms_norm(graph, x, weight, f"{place}.out", arch.norm_eps)
    bias = [graph.tensor(f"{key}.bias", arch.d_model)] if arch.norm_bias else []
    return graph.node("LayerNormalization", [x, weight, *bias], f"{place}.out", axis=-1, epsilon=arch.norm_eps)
