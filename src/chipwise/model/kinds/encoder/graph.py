"""An encoder with its weights as one ONNX file: tokens in, one embedding a text (or every state) out.

As in ``onnx.py`` the graph that is measured is the graph that is shipped, and the file describes itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.blocks.attention.onnx_encoder import add_encoder_attention
from chipwise.model.blocks.ffn.onnx import add_ffn
from chipwise.model.blocks.norm.onnx import add_norm
from chipwise.model.blocks.onnx_graph import GraphBuilder

Output = Literal["mean", "pooler", "states"]


def encoder_graph(
    design: Design, weights: Mapping[str, npt.NDArray[Any]], *, output: Output = "mean", padded: bool = False
) -> GraphBuilder:
    """The nodes of an encoder, its input ``tokens`` (B, T) and output ``embedding`` (B, D) or ``states`` (B, T, D).

    Args:
        design: An encoder.
        weights: Named as the torch module's state dict.
        output: The mean of the states, the pooler's result, or the states themselves.
        padded: Whether texts of several lengths come together: an input ``mask`` (B, T) then marks the positions that
            are text (1) and which padding (0). Without it the runtime has a faster kernel.

    Raises:
        SpecError: A weight is missing or has the wrong shape.
        Unsupported: The weight format has no graph, or the encoder no pooler.
    """
    arch = design.arch
    if output == "pooler" and arch.head != "pooler":
        raise Unsupported(f"{arch.name} has no pooler; export it with output='mean' or 'states'")
    graph = GraphBuilder(weights=weights, format_of=design.format_of)
    x = _embedding(graph, arch)
    mask = graph.input("mask", TensorProto.INT32, ["batch", "tokens"]) if padded else None
    for i, layer in enumerate(arch.layers):
        if layer.attention is not None:
            y = add_encoder_attention(graph, layer.attention, layer=i, x=x, d_model=arch.d_model, mask=mask)
            x, _ = add_norm(graph, arch, f"layers.{i}.attention_norm", f"layers.{i}.attention_norm", x, y)
        if layer.ffn is not None:
            y = add_ffn(graph, layer.ffn, layer=i, key=f"layers.{i}.ffn", x=x, d_model=arch.d_model)
            x, _ = add_norm(graph, arch, f"layers.{i}.ffn_norm", f"layers.{i}.ffn_norm", x, y)
    if output == "states":
        graph.node("Identity", [x], "states")
        graph.output("states", ["batch", "tokens", arch.d_model])
        return graph
    if output == "mean":
        _mean(graph, x, mask)
    else:
        start = graph.store("zero", lambda: np.array([0], np.int64))
        axis = graph.store("one", lambda: np.array([1], np.int64))
        first = graph.node("Squeeze", [graph.node("Gather", [x, start], "pooler.row", axis=1), axis], "pooler.first")
        size = [arch.d_model]
        made = graph.projection(
            "pooler.made", first, parts=["pooler"], key="pooler", k=arch.d_model, widths=size, bias=True
        )
        graph.node("Tanh", [made], "embedding")
    graph.output("embedding", ["batch", arch.d_model])
    return graph


def encoder_metadata(output: Output, *, padded: bool) -> dict[str, Any]:
    """The metadata of an encoder's file beyond that of every file."""
    return {"encodes": output, "padded": padded, "kv": []}


def _embedding(graph: GraphBuilder, arch: ArchSpec) -> str:
    """The first layer's input (B, T, D): tokens, positions and the first segment; the latter two as one table."""
    d = arch.d_model
    tokens = graph.input("tokens", TensorProto.INT64, ["batch", "tokens"])
    table = graph.store("embedding.weight", lambda: graph.weight("embedding.weight", (arch.vocab_size, d)))

    def places() -> npt.NDArray[Any]:
        rows = graph.weight("positions.weight", (arch.max_tokens, d))
        return rows + graph.weight("token_types.weight", (arch.token_types, d))[:1] if arch.token_types else rows

    x = graph.node("Gather", [table, tokens], "embedding.tokens", axis=0)
    length = graph.node("Shape", [tokens], "embedding.length", start=1, end=2)
    start = graph.store("zero", lambda: np.array([0], np.int64))
    rows = graph.node("Slice", [graph.store("positions.weight", places), start, length], "embedding.positions")
    if arch.embedding_norm:
        return add_norm(graph, arch, "embedding_norm", "embedding_norm", x, rows)[0]
    return graph.node("Add", [x, rows], "embedding.sum")


def _mean(graph: GraphBuilder, x: str, mask: str | None) -> None:
    """The mean over the positions that are text, as ``embedding``."""
    axis = graph.store("one", lambda: np.array([1], np.int64))
    if mask is None:
        graph.node("ReduceMean", [x, axis], "embedding", keepdims=0)
        return
    weight = graph.node("Cast", [mask], "mean.weight", to=TensorProto.FLOAT)
    row = graph.node("Unsqueeze", [weight, axis], "mean.row")
    total = graph.node("MatMul", [row, x], "mean.total")
    total = graph.node("Squeeze", [total, axis], "mean.sum")
    count = graph.node("ReduceSum", [weight, axis], "mean.count", keepdims=1)
    graph.node("Div", [total, count], "embedding")
