"""Attention over an image as ONNX nodes: positions are grouped into windows, attend, and are put back in order.

Windows that divide the grid take two reshapes and a transposition; padded or shifted ones are gathered by index. Biases
are one tensor for all pairs, computed from the table when the graph is built. Shifted windows have different masks, so
the heads of all windows are put side by side; then one constant works for any batch size.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import AnyArray
from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.attention.onnx_encoder import add_heads
from chipwise.model.blocks.onnx_graph import GraphBuilder, reshaped
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.image.windows.spec import Squares, bias_places, squares_of


def add_attend(
    graph: GraphBuilder, block: Attention, stem: ImageStem, *, layer: int, x: str, d_model: int, before: str = ""
) -> str:
    """Attention of ``x`` over all positions or within windows, before the output projection.

    ``before`` is the prefix of the layer's names.
    """
    place, squares = f"{before}layers.{layer}.attention", squares_of(block, stem, layer)
    bias = _biases(graph, block, stem, squares, f"{before}positions.{layer}", place)
    if squares is None:
        return add_heads(graph, block, layer=layer, x=x, d_model=d_model, mask=None, bias=bias, before=before)
    if squares.plain:
        x = add_into_squares(graph, x, place=f"{place}.squares", squares=squares, width=d_model)
        x = add_heads(graph, block, layer=layer, x=x, d_model=d_model, mask=None, bias=bias, before=before)
        return add_from_squares(graph, x, place=f"{place}.rows", squares=squares, width=block.query_width)
    x = _gathered(graph, x, place=f"{place}.squares", squares=squares, width=d_model)
    apart = squares.number if squares.shift else 1
    x = add_heads(graph, block, layer=layer, x=x, d_model=d_model, mask=None, bias=bias, before=before, apart=apart)
    flat = reshaped(graph, x, [-1, squares.positions, block.query_width], f"{place}.flat")
    back = graph.store(f"back.{_name(squares)}", lambda: _order(squares)[1])
    return graph.node("Gather", [flat, back], f"{place}.rows", axis=1)


def _gathered(graph: GraphBuilder, x: str, *, place: str, squares: Squares, width: int) -> str:
    """Positions grouped by window: (B · windows, side², width), or (B, side² · windows, width) for shifted windows."""
    if squares.filled != squares.grid:
        room = graph.store("squares.room", lambda: np.array([0, 0, 0, 0, 1, 0], np.int64))
        x = graph.node("Pad", [x, room], f"{place}.padded")
    order = graph.store(f"order.{_name(squares)}", lambda: _order(squares)[0])
    x = graph.node("Gather", [x, order], f"{place}.gathered", axis=1)
    return x if squares.shift else reshaped(graph, x, [-1, squares.side**2, width], place)


def _order(squares: Squares) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The position in each place of the windows, and the place of each position; shifted windows are interleaved."""
    order = squares.order()
    if not squares.shift:
        return order.ravel(), squares.back()
    turned = order.T.ravel()
    return turned, np.argsort(turned, kind="stable")[: squares.grid**2]


def _name(squares: Squares) -> str:
    return f"{squares.grid}.{squares.side}.{squares.shift}"


def _biases(
    graph: GraphBuilder, block: Attention, stem: ImageStem, squares: Squares | None, table: str, place: str
) -> str | None:
    """Name of the tensor added to the scores: (1, N, T, T), or (1, windows · N, T, T) for shifted windows; or None."""
    hidden = None if squares is None else squares.hidden()
    if not block.relative_buckets and hidden is None:
        return None

    def make() -> AnyArray:
        found = np.zeros((block.heads, 1, 1), np.float32)
        if block.relative_buckets:
            rows = graph.weight(f"{table}.weight", (block.relative_buckets, block.heads))
            found = rows[bias_places(stem, block.square)].transpose(2, 0, 1)
        if hidden is None:
            return found[None]
        both = found[None] + hidden[:, None]
        return both.reshape(1, -1, *both.shape[2:])

    return graph.store(f"{place}.biases", make)


def add_into_squares(graph: GraphBuilder, x: str, *, place: str, squares: Squares, width: int) -> str:
    """Groups positions by window: (B, grid², width) -> (B · windows, side², width)."""
    count, side = squares.count, squares.side
    parts = reshaped(graph, x, [-1, count, side, count, side, width], f"{place}.cut")
    turned = graph.node("Transpose", [parts], f"{place}.turned", perm=[0, 1, 3, 2, 4, 5])
    return reshaped(graph, turned, [-1, side**2, width], place)


def add_from_squares(graph: GraphBuilder, x: str, *, place: str, squares: Squares, width: int) -> str:
    """The inverse of :func:`add_into_squares`."""
    count, side = squares.count, squares.side
    parts = reshaped(graph, x, [-1, count, count, side, side, width], f"{place}.cut")
    turned = graph.node("Transpose", [parts], f"{place}.turned", perm=[0, 1, 3, 2, 4, 5])
    return reshaped(graph, turned, [-1, squares.grid**2, width], place)
