"""Token table, learned positions and head as ONNX nodes."""

from __future__ import annotations

from onnx import TensorProto

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.onnx_graph import MICROSOFT, GraphBuilder


def add_embedding(graph: GraphBuilder, arch: ArchSpec) -> str:
    """Adds the nodes from the input ``tokens`` to the residual stream (B, T, D)."""
    tokens = graph.input("tokens", TensorProto.INT64, ["batch", "tokens"])
    table = graph.tensor("embedding.weight", arch.vocab_size, arch.d_model)
    x = graph.node("Gather", [table, tokens], "embedding.tokens", axis=0)
    if arch.positions == "learned":
        positions = graph.input("positions", TensorProto.INT64, ["batch", "tokens"])
        rows = graph.tensor("positions.weight", arch.max_tokens, arch.d_model)
        row = graph.node("Gather", [rows, positions], "embedding.positions", axis=0)
        x = graph.node("Add", [x, row], "embedding.add")
    return x


def add_head(graph: GraphBuilder, arch: ArchSpec, x: str) -> str:
    """Adds the logits of ``x``. A tied FP32 head reads the token table directly.

    In that case the table is also declared as a graph input with a default value. ONNX Runtime does not pack such
    tensors, so it makes no second copy. With one position per pass, packing would save no time.
    """
    if arch.tie_embeddings and graph.format_of("head.weight") == "fp32":
        graph.input("embedding.weight", TensorProto.FLOAT, [arch.vocab_size, arch.d_model])
        return graph.node("FusedMatMul", [x, "embedding.weight"], "logits", domain=MICROSOFT, transB=1)
    source = "embedding" if arch.tie_embeddings else "head"
    return graph.projection("logits", x, k=arch.d_model, parts={source: arch.vocab_size}, key="head")
