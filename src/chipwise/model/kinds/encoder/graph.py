"""Input and output of a text encoder as ONNX nodes: reads tokens; outputs one embedding per text, or all states."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from chipwise.core.arrays import AnyArray
from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Pooler
from chipwise.model.blocks.nodes import Nodes, Stream
from chipwise.model.blocks.norm.onnx import add_norm
from chipwise.model.blocks.onnx_graph import GraphBuilder


def _stem(s: Stream) -> None:
    """Adds the embedding and, for padded texts, an input ``mask`` (B, T): 1 at text, 0 at padding.

    Without a mask, the runtime uses a faster kernel.
    """
    if s.output == "pooler" and not isinstance(s.arch.head, Pooler):
        raise Unsupported(f"{s.arch.name} has no pooler; export it with output='mean' or 'states'")
    s.x = _embedding(s.graph, s.arch)
    s.read = s.graph.input("mask", TensorProto.INT32, ["batch", "tokens"]) if s.padded else ""


def _head(s: Stream) -> None:
    """Adds the output: ``embedding`` (B, D), the states' mean or the pooler's result; or ``states`` (B, T, D)."""
    graph, d = s.graph, s.arch.d_model
    if s.output == "states":
        graph.node("Identity", [s.x], "states")
        graph.output("states", ["batch", "tokens", d])
        return
    if s.output == "mean":
        _mean(graph, s.x, s.read or None)
    else:
        start = graph.store("zero", lambda: np.array([0], np.int64))
        axis = graph.store("one", lambda: np.array([1], np.int64))
        first = graph.node("Squeeze", [graph.node("Gather", [s.x, start], "pooler.row", axis=1), axis], "pooler.first")
        made = graph.projection("pooler.made", first, k=d, parts={"pooler": d}, bias=True)
        graph.node("Tanh", [made], "embedding")
    graph.output("embedding", ["batch", d])


def _metadata(s: Stream) -> dict[str, object]:
    return {"encodes": s.output, "padded": s.padded, "kv": []}


def _embedding(graph: GraphBuilder, arch: ArchSpec) -> str:
    """Adds the first layer's input (B, T, D). The first segment's embedding is folded into the position table."""
    d, segments = arch.d_model, arch.stem.token_types
    tokens = graph.input("tokens", TensorProto.INT64, ["batch", "tokens"])
    table = graph.store("embedding.weight", lambda: graph.weight("embedding.weight", (arch.vocab_size, d)))

    def places() -> AnyArray:
        rows = graph.weight("positions.weight", (arch.max_tokens, d))
        return rows + graph.weight("token_types.weight", (segments, d))[:1] if segments else rows

    x = graph.node("Gather", [table, tokens], "embedding.tokens", axis=0)
    length = graph.node("Shape", [tokens], "embedding.length", start=1, end=2)
    start = graph.store("zero", lambda: np.array([0], np.int64))
    rows = graph.node("Slice", [graph.store("positions.weight", places), start, length], "embedding.positions")
    if arch.embedding_norm:
        return add_norm(graph, arch, "embedding_norm", "embedding_norm", x, rows)[0]
    return graph.node("Add", [x, rows], "embedding.sum")


def _mean(graph: GraphBuilder, x: str, mask: str | None) -> None:
    """Adds the output ``embedding``: the mean over the text's positions, without padding."""
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


NODES = Nodes(stem=_stem, head=_head, metadata=_metadata, logits="all")
