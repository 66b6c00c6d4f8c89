"""A projector as ONNX nodes."""

from __future__ import annotations

import numpy as np

from chipwise.blocks.onnx_graph import MICROSOFT, GraphBuilder, reshaped
from chipwise.blocks.squares.onnx import add_into_squares
from chipwise.spec import ImageStem
from chipwise.spec.projector import Projector
from chipwise.spec.squares import Squares


def add_projector(graph: GraphBuilder, projector: Projector, stem: ImageStem, x: str, *, d_model: int) -> str:
    """Tokens (B, T, D) of patches (B, P, D), without the last bias, which the caller adds to its table of positions."""
    square = projector.pool * projector.join
    tokens = stem.patches // square**stem.axes
    if square > 1:
        squares = Squares(grid=stem.grid, side=square)
        x = add_into_squares(graph, x, place="projector.squares", squares=squares, width=d_model)
        if projector.pool > 1:
            axis = graph.store("one", lambda: np.array([1], np.int64))
            x = graph.node("ReduceMean", [x, axis], "projector.mean", keepdims=0)
        x = reshaped(graph, x, [-1, tokens, projector.joined_width(d_model, stem.axes)], "projector.rows")
    shapes = projector.shapes(d_model, stem.axes)
    for i, (into, out) in enumerate(shapes):
        last, key = i + 1 == len(shapes), f"projector.matrices.{i}"
        bias = not last
        x = graph.projection(f"projector.{i}", x, parts=[key], key=key, k=into, widths=[out], bias=bias)
        if not last:
            x = graph.node("Gelu", [x], f"projector.{i}.activation", domain=MICROSOFT)
    return x
