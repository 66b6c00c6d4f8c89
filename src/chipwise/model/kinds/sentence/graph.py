"""Input and output of a text classifier as ONNX nodes: it reads word numbers and outputs class logits."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from chipwise.model.blocks.nodes import Nodes, Stream
from chipwise.model.kinds.sentence.stem import SentenceStem


def _stem(s: Stream) -> None:
    graph, arch, stem = s.graph, s.arch, s.arch.stem_as(SentenceStem)
    ids = graph.input("words", TensorProto.INT64, ["batch", stem.tokens])
    table = graph.tensor("stem.words.weight", stem.words, stem.table_width(arch.d_model))
    x, place = graph.node("Gather", [table, ids], "stem.words", axis=0), "stem.projection"
    for into, out in stem.matrices(arch.d_model):
        x = graph.projection(place, x, k=into, parts={place: out})
    rows = graph.tensor("positions.weight", arch.max_tokens, arch.d_model)
    s.x = graph.node("Add", [x, rows], "stem.positions")


def _head(s: Stream) -> None:
    graph, classes = s.graph, s.arch.outputs
    axis = graph.store("one", lambda: np.array([1], np.int64))
    mean = graph.node("ReduceMean", [s.norm("norm"), axis], "head.mean", keepdims=0)
    graph.projection("logits", mean, k=s.arch.d_model, parts={"head": classes}, bias=True)
    graph.output("logits", ["batch", classes])


def _metadata(s: Stream) -> dict[str, object]:
    """The metadata entries, with the number of words per text."""
    stem = s.arch.stem_as(SentenceStem)
    return {"encodes": "classes", "image": list(stem.shape), "numbers": stem.words, "kv": []}


NODES = Nodes(
    stem=_stem,
    head=_head,
    metadata=_metadata,
    logits="last",
)
