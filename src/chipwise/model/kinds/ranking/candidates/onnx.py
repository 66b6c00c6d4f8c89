"""Item embeddings, attention over a request, and scores of candidates as ONNX nodes.

History and candidates are one sequence, so each matrix product is one node instead of two. The number of candidates is
a dynamic axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from chipwise.core.arrays import AnyArray
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.norm.onnx import add_rms_norm
from chipwise.model.blocks.onnx_graph import MICROSOFT, GraphBuilder, reshaped
from chipwise.model.kinds.ranking.stem import RankingStem, Scores

HIDDEN = -60.0
"""Added to the scores of masked pairs. e⁻⁶⁰ is negligible in FP32, whereas exponentials of numbers below -87 are
subnormal, which made ONNX Runtime's softmax 3.4 times as slow."""
END = np.iinfo(np.int64).max


def add_items(graph: GraphBuilder, arch: ArchSpec, stem: RankingStem, *, joined: bool = False) -> str:
    """Adds the nodes from the inputs ``history`` (B, S) and ``candidates`` (B, C) to the residual stream (B, T, D).

    If items have tags, there are inputs ``history_tags`` (B, S, bag) and ``candidate_tags`` (B, C, bag). If the
    embeddings of items and tags are added, ``joined`` merges the two tables and the two look-ups into one.
    """
    width = stem.table_width(arch.d_model)
    sizes = {"stem.items": stem.items + 1, "stem.tags": stem.tags + 1}

    def given(table: str, names: Sequence[str], shape: Sequence[int]) -> str:
        counts: tuple[int | str, ...] = (stem.history, "count")
        parts = [
            graph.input(name, TensorProto.INT64, ["batch", count, *shape])
            for name, count in zip(names, counts, strict=True)
        ]
        return graph.node("Concat", parts, f"{table}.ids", axis=1)

    def values(table: str) -> npt.NDArray[np.float32]:
        return graph.weight(f"{table}.weight", (sizes[table], width))

    def gathered(table: str, ids: str) -> str:
        stored = graph.store(f"{table}.weight", lambda: values(table))
        return graph.node("Gather", [stored, ids], f"{table}.rows", axis=0)

    items = given("stem.items", ("history", "candidates"), ())
    tags = given("stem.tags", ("history_tags", "candidate_tags"), (stem.bag,)) if stem.bag else ""
    if joined and stem.bag and not stem.width:
        both = graph.store("stem.weight", lambda: np.concatenate([values("stem.items"), values("stem.tags")]))
        behind = graph.store("stem.behind", lambda: np.array(sizes["stem.items"], np.int64))
        moved = graph.node("Add", [tags, behind], "stem.moved")
        first = graph.node("Unsqueeze", [items, _ints(graph, 2)], "stem.first")
        ids = graph.node("Concat", [first, moved], "stem.ids", axis=2)
        rows = graph.node("Gather", [both, ids], "stem.rows", axis=0)
        return graph.node("ReduceSum", [rows, _ints(graph, 2)], "stem.out", keepdims=0)
    x = gathered("stem.items", items)
    if stem.bag:
        rows = gathered("stem.tags", tags)
        tags = graph.node("ReduceSum", [rows, _ints(graph, 2)], "stem.tags", keepdims=0)
        how, axis = ("Concat", {"axis": -1}) if stem.width else ("Add", {})
        x = graph.node(how, [x, tags], "stem.features", **axis)
    if stem.width:
        x = graph.projection("stem.out", x, k=stem.values, parts={"stem.projection": arch.d_model}, bias=stem.bias)
    return x


def add_candidates(graph: GraphBuilder, x: str, place: str, history: int, *, axis: int = 1) -> str:
    """Adds a node ``place`` that removes the history's positions from ``x``."""
    inputs = [x, _ints(graph, history), _ints(graph, END), _ints(graph, axis)]
    return graph.node("Slice", inputs, place)


def add_request_attention(
    graph: GraphBuilder, arch: ArchSpec, block: Attention, *, layer: int, x: str, last: bool, joined: bool = True
) -> str:
    """Attention of ``x`` (B, T, D) before the output projection; in the ``last`` block, only of the candidates.

    With ``joined``, all projections are one matrix product.
    """
    place, width, history = f"layers.{layer}.attention", block.query_width, arch.stem_as(RankingStem).history
    names = ["q", "k", "v", *(["gate"] if block.pointwise else [])]

    def projected(name: str, parts: Sequence[str]) -> str:
        result = f"{place}.{name}" if joined else f"{place}.{name}.product"
        rows = dict.fromkeys((f"{place}.{part}" for part in parts), width)
        found = graph.projection(result, x, k=arch.d_model, parts=rows, key=f"{place}.{name}", bias=block.qkv_bias)
        if not block.pointwise:
            return found
        return graph.node("QuickGelu", [found], f"{place}.{name}.activation", domain=MICROSOFT, alpha=1.0)

    packed = [projected("qkv", names)] if joined else [projected(name, [name]) for name in names]
    bias = _position_bias(graph, f"positions.{layer}.weight", history, block.heads)
    heads, gate = add_heads(graph, block, history, place=place, packed=packed, bias=bias, last=last)
    if block.pointwise:
        weight = graph.tensor(f"{place}.norm.weight", width)
        normed = add_rms_norm(graph, heads, weight, f"{place}.norm", arch.norm_eps)
        heads = graph.node("Mul", [normed, gate], f"{place}.gate")
    return heads


def add_heads(
    graph: GraphBuilder,
    block: Attention,
    history: int,
    *,
    place: str,
    packed: Sequence[str],
    bias: Callable[[], AnyArray],
    last: bool,
) -> tuple[str, str]:
    """Attention's result and, for pointwise attention, the gate's values, each (B, queries, width).

    ``packed`` holds all projections as one tensor (B, T, parts · width), or one tensor per projection. ``bias`` returns
    (heads, S + 1, S + 1). Rows are history positions, and the last row is for all candidates; columns are history
    positions, and the last column is for the position itself.
    """
    size, width, parts = block.head_size, block.query_width, 4 if block.pointwise else 3
    each = [f"{place}.{name}" for name in ("query", "keys", "values", "gates")[:parts]]

    def turned(name: str, count: int, result: str) -> str:
        split = reshaped(graph, name, [0, 0, count, block.heads, size], f"{result}.parts")
        return graph.node("Transpose", [split], result, perm=[2, 0, 3, 1, 4])

    if len(packed) == 1:
        whole = turned(packed[0], parts, f"{place}.turned")
        graph.node("Split", [whole, graph.store(f"ones.{parts}", lambda: np.ones(parts, np.int64))], each, axis=0)
    else:
        for name, result in zip(packed, each, strict=True):
            turned(name, 1, result)

    def seen(name: str) -> str:
        inputs = [name, _ints(graph, 0), _ints(graph, history), _ints(graph, 3)]
        return graph.node("Slice", inputs, f"{name}.seen")

    keys, values = seen(each[1]), seen(each[2])
    asking = [add_candidates(graph, name, f"{name}.asking", history, axis=3) for name in each] if last else each
    scale = graph.store(f"scale.{size}", lambda: np.array(1 / math.sqrt(size), np.float32))
    query = graph.node("Mul", [asking[0], scale], f"{place}.scaled")
    scores = graph.node("FusedMatMul", [query, keys], f"{place}.scores", domain=MICROSOFT, transB=1)
    product = graph.node("Mul", [query, asking[1]], f"{place}.product")
    own = graph.node("ReduceSum", [product, _ints(graph, -1)], f"{place}.own", keepdims=1)
    joined = graph.node("Concat", [scores, own], f"{place}.joined", axis=-1)
    biased = graph.node("Add", [joined, _rows(graph, f"{place}.bias", bias, history, last=last)], f"{place}.biased")
    if block.pointwise:
        active = graph.node("QuickGelu", [biased], f"{place}.active", domain=MICROSOFT, alpha=1.0)
        mask = _rows(graph, "seen", lambda: _seen(history), history, last=last)
        shares = graph.node("Mul", [active, mask], f"{place}.shares")
    else:
        shares = graph.node("Softmax", [biased], f"{place}.shares", axis=-1)
    halves = [f"{place}.share.{name}" for name in ("history", "own")]
    graph.node("Split", [shares, graph.store("halves", lambda: np.array([history, 1], np.int64))], halves, axis=-1)
    others = graph.node("MatMul", [halves[0], values], f"{place}.others")
    itself = graph.node("Mul", [halves[1], asking[2]], f"{place}.itself")
    both = graph.node("Add", [others, itself], f"{place}.both")

    def positions(name: str, result: str) -> str:
        back = graph.node("Transpose", [name], f"{result}.back", perm=[1, 3, 0, 2, 4])
        return reshaped(graph, back, [0, 0, width], result)

    return positions(both, f"{place}.attend"), positions(asking[3], f"{place}.gating") if block.pointwise else ""


def add_scores(graph: GraphBuilder, arch: ArchSpec, stem: RankingStem, *, x: str, first: str) -> None:
    """Adds the output ``scores`` (B, C).

    ``x`` (B, C, D) are the normed states, and ``first`` (B, T, D) are the inputs of the first layer.
    """
    if isinstance(arch.head, Scores):
        graph.projection("head.scores", x, k=arch.d_model, parts={"head": 1}, bias=True)
        graph.node("Squeeze", ["head.scores", _ints(graph, -1)], "scores")
    else:
        product = graph.node("Mul", [x, add_candidates(graph, first, "head.candidates", stem.history)], "head.product")
        graph.node("ReduceSum", [product, _ints(graph, -1)], "scores", keepdims=0)
    graph.output("scores", ["batch", "count"])


def _rows(graph: GraphBuilder, name: str, make: Callable[[], AnyArray], history: int, *, last: bool) -> str:
    """Expands the table ``make()`` (heads, S + 1, S + 1) to one row per position; all candidates get the last row."""
    if last:
        return graph.store(f"{name}.last", lambda: make()[:, history:])
    padded = f"{name}.rows"
    if not any(padded in node.output for node in graph.nodes):
        table = graph.store(name, make)
        if "further" not in graph.stored:
            graph.store("further", lambda: np.array([0, 0, 0, 0], np.int64))
            count = graph.node("Shape", ["candidates"], "count.candidates", start=1, end=2)
            more = graph.node("Sub", [count, _ints(graph, 1)], "count.further")
            zero = _ints(graph, 0)
            graph.node("Concat", ["further", more, zero], "count.pads", axis=0)
        graph.node("Pad", [table, "count.pads"], padded, mode="edge")
    return padded


def _position_bias(graph: GraphBuilder, name: str, history: int, heads: int) -> Callable[[], AnyArray]:
    """The position biases and the mask of later items, in the layout of :func:`add_heads`."""

    def make() -> AnyArray:
        table = graph.weight(name, (history + 1, heads))
        distance = np.arange(history + 1)[:, None] - np.arange(history + 1)  # from each row to each history position
        distance[:, -1] = 0
        found = np.where(distance[..., None] > 0, table[np.maximum(distance, 0)], np.float32(HIDDEN))
        found[:, -1] = table[0]
        return np.ascontiguousarray(found.transpose(2, 0, 1).astype(np.float32))

    return make


def _seen(history: int) -> npt.NDArray[np.float32]:
    """The factors (1, S + 1, S + 1) by which pointwise attention multiplies scores: 0 if masked, else 1 / (S + 1)."""
    table = np.tril(np.ones((history + 1, history + 1), np.float32), -1)
    table[:, -1] = 1
    return table[None] / np.float32(history + 1)


def _ints(graph: GraphBuilder, value: int) -> str:
    return graph.store(f"int.{value}", lambda: np.array([value], np.int64))
