"""A projector as ONNX nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.norm.onnx import add_norm
from chipwise.model.blocks.onnx_graph import MICROSOFT, GraphBuilder, reshaped
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.question.projector.spec import Projector


def add_projector(
    graph: GraphBuilder, projector: Projector, stem: ImageStem, x: str, *, d_model: int, norm: ArchSpec | None = None
) -> str:
    """Tokens (B, T, D) from patches (B, P, D), without the last bias, which the caller adds to its position table.

    ``norm`` is the tower, whose kind of norm the projector's norm has.
    """
    square = projector.pool * projector.join
    tokens = stem.patches // square**stem.axes
    normed = norm is not None and projector.norm != "none"
    if norm is not None and normed and not projector.norm_joined:
        x, _ = add_norm(graph, norm, "projector.norm", "projector.norm", x, None)
    if square > 1:
        count = stem.grid // square
        x = reshaped(graph, x, [-1, count, square, count, square, d_model], "projector.squares.cut")
        x = graph.node("Transpose", [x], "projector.squares.turned", perm=[0, 1, 3, 2, 4, 5])
        x = reshaped(graph, x, [-1, square**2, d_model], "projector.squares")
        if projector.pool > 1:
            axis = graph.store("one", lambda: np.array([1], np.int64))
            x = graph.node("ReduceMean", [x, axis], "projector.mean", keepdims=0)
        x = reshaped(graph, x, [-1, tokens, projector.joined_width(d_model, stem.axes)], "projector.rows")
    if norm is not None and normed and projector.norm_joined:
        wide = replace(norm, d_model=projector.joined_width(d_model, stem.axes))
        x, _ = add_norm(graph, wide, "projector.norm", "projector.norm", x, None)
    shapes = projector.shapes(d_model, stem.axes)
    for i, (into, out) in enumerate(shapes):
        last, key = i + 1 == len(shapes), f"projector.matrices.{i}"
        bias = not last
        x = graph.projection(f"projector.{i}", x, parts=[key], key=key, k=into, widths=[out], bias=bias)
        if not last:
            x = graph.node("Gelu", [x], f"projector.{i}.activation", domain=MICROSOFT)
    return x
