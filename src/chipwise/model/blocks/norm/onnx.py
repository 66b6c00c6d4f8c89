"""A norm as ONNX nodes, with the residual addition before it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.onnx_graph import MICROSOFT, GraphBuilder


def add_norm(graph: GraphBuilder, arch: ArchSpec, place: str, key: str, x: str, skip: str | None) -> tuple[str, str]:
    """Adds ``skip`` (a block's output, if any) to ``x`` and norms the sum; returns (normed, sum).

    For RMSNorm, one node does both. LayerNorm takes two: ONNX Runtime's SkipLayerNormalization is scalar code and
    slower than two nodes.
    """
    weight = graph.vector(f"{key}.weight", arch.d_model)
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
    """RMSNorm of each head of ``x`` (B, T, heads * head_size) separately."""
    split = graph.store(f"shape.{heads}x{head_size}", lambda: _shape(0, 0, heads, head_size))
    joined = graph.store(f"shape.{heads * head_size}", lambda: _shape(0, 0, heads * head_size))
    per_head = graph.node("Reshape", [x, split], f"{place}.heads")
    normed = graph.node(
        "SimplifiedLayerNormalization",
        [per_head, graph.vector(f"{key}.weight", head_size)],
        f"{place}.normed",
        axis=-1,
        epsilon=eps,
        stash_type=1,
    )
    return graph.node("Reshape", [normed, joined], f"{place}.out")


def _norm(graph: GraphBuilder, arch: ArchSpec, place: str, key: str, x: str, weight: str) -> str:
    if arch.norm == "rmsnorm":
        return graph.node(
            "SimplifiedLayerNormalization",
            [x, weight],
            f"{place}.out",
            axis=-1,
            epsilon=arch.norm_eps,
            stash_type=1,
        )
    bias = [graph.vector(f"{key}.bias", arch.d_model)] if arch.norm_bias else []
    return graph.node("LayerNormalization", [x, weight, *bias], f"{place}.out", axis=-1, epsilon=arch.norm_eps)


def _shape(*sizes: int) -> npt.NDArray[np.int64]:
    return np.array(sizes, np.int64)
