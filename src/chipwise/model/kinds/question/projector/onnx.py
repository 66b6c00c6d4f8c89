"""A projector as ONNX nodes."""

from __future__ import annotations

import numpy as np

from chipwise.model.blocks.onnx_graph import MICROSOFT, GraphBuilder, reshaped
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.question.projector.spec import Projector


def add_projector(graph: GraphBuilder, projector: Projector, stem: ImageStem, x: str, *, d_model: int) -> str:
    """Adds nodes from patches (B, P, D) to tokens (B, T, D). The caller adds the last bias to its position table."""
    square = projector.pool * projector.join
    tokens = stem.patches // square**stem.axes
    if square > 1:
        count = stem.grid // square
        x = reshaped(graph, x, [-1, count, square, count, square, d_model], "projector.squares.cut")
        x = graph.node("Transpose", [x], "projector.squares.turned", perm=[0, 1, 3, 2, 4, 5])
        x = reshaped(graph, x, [-1, square**2, d_model], "projector.squares")
        if projector.pool > 1:
            axis = graph.store("one", lambda: np.array([1], np.int64))
            x = graph.node("ReduceMean", [x, axis], "projector.mean", keepdims=0)
        x = reshaped(graph, x, [-1, tokens, projector.joined_width(d_model, stem.axes)], "projector.rows")
    shapes = projector.shapes(d_model, stem.axes)
    for i, (into, out) in enumerate(shapes):
        last, key = i + 1 == len(shapes), f"projector.matrices.{i}"
        x = graph.projection(f"projector.{i}", x, k=into, parts={key: out}, bias=not last)
        if not last:
            x = graph.node("Gelu", [x], f"projector.{i}.activation", domain=MICROSOFT)
    return x
