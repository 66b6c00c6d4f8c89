"""Recognises graphs of plain vision transformers, which have a better formula: one fitted to whole PyTorch passes.

A graph is recognised by its matrix products alone; names and elementwise operators do not matter. The first matrix
product (or convolution) cuts square images into patches. Equal layers follow, each with projections to queries, keys
and values, attention over all positions, an output projection and a feed-forward. At the end, one matrix product may
give the classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from chipwise.errors import SpecError, UnknownName, Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.runtime import runtime_named
from chipwise.model.graphs.graph import Graph, GraphOp
from chipwise.predict.cost.model import Predicted
from chipwise.predict.served.image_law import DTYPES, RUNTIMES
from chipwise.predict.whole_runs import vision
from chipwise.predict.whole_runs.vision import VisionTransformer

MOST_PREFIX = 16  # tokens before the patches: a class token, registers
Size = tuple[int, int]  # depth and columns of a matrix product with weights


def pass_s(graph: Graph, sheet: DeviceProfile, runtime: str, weights: str) -> Predicted | None:
    """Seconds of a pass with the 90 % interval, predicted by the formula that was fitted to whole passes in PyTorch.

    None if the formula does not cover the runtime, the number format or the graph.
    """
    try:
        named = RUNTIMES.get(runtime_named(runtime).name)
    except UnknownName:
        return None
    found = plain_transformer(graph) if named and weights in DTYPES else None
    if found is None or named is None:
        return None
    model, batch = found
    setup = vision.Setup(device=sheet, runtime=named, dtype=DTYPES[weights])
    try:
        return vision.step_s(model, setup, batch=batch)
    except Unsupported:  # the sheet lists no rate for such matrix products
        return None


def plain_transformer(graph: Graph) -> tuple[VisionTransformer, int] | None:
    """The plain vision transformer that a graph computes, and its number of images; None for any other graph."""
    shape = next((each.shape for each in graph.inputs), ())
    sizes = [size for size in shape if isinstance(size, int)]
    if len(graph.inputs) != 1 or len(sizes) != 4 or min(sizes) < 1 or sizes[2] != sizes[3] or graph.uncounted:
        return None
    batch, channels, edge, _ = sizes
    products = [op for op in graph.ops if op.gemm]
    if not products or channels != vision.CHANNELS or any(op.runs != 1 for op in products):
        return None
    parts = _split(products[1:])
    if parts is None:
        return None
    stem, (attended, between) = products[0].gemm, parts
    patch = math.isqrt(stem[3] // channels)
    if not patch or stem != (1, batch * (edge // patch) ** 2, stem[2], channels * patch * patch):
        return None
    layer = _layer(between, width=stem[2])
    if layer is None:
        return None
    hidden, gated, classes = layer
    heads, left = divmod(attended[0], batch)
    prefix = attended[1] - (edge // patch) ** 2
    if left or not 0 <= prefix <= MOST_PREFIX or heads * attended[3] != stem[2]:
        return None
    try:
        model = VisionTransformer(
            image_size=edge,
            patch=patch,
            width=stem[2],
            depth=len(between) - 1,
            heads=heads,
            mlp_hidden=hidden,
            gated=gated,
            prefix_tokens=prefix,
            classes=classes,
        )
    except SpecError:
        return None
    return model, batch


def _split(products: Sequence[GraphOp]) -> tuple[tuple[int, ...], list[list[Size]]] | None:
    """Splits the matrix products of the layers into attention and products with weights.

    Returns the sizes of the matrix product that gives one layer's attention scores, and lists of the sizes of the
    products with weights: before the first attention, between one attention and the next, and after the last. None if
    layers differ in the sizes of their attention, or if another kind of product occurs.
    """
    scores: list[tuple[int, ...]] = []
    between: list[list[Size]] = [[]]
    opened: tuple[int, ...] = ()  # scores not yet multiplied by values, whose projection may come in between
    for op in products:
        many, rows, columns, depth = op.gemm
        if op.kind in ("matmul", "pointwise conv"):
            between[-1].append((depth, columns))
        elif op.kind == "batched matmul" and opened:
            if op.gemm != (many, opened[1], opened[3], opened[2]) or many != opened[0]:
                return None
            opened = ()
            between.append([])
        elif rows == columns and (op.kind == "batched matmul" or (op.kind == "attention" and not op.weight_bytes)):
            scores.append(op.gemm)
            opened = op.gemm if op.kind == "batched matmul" else ()
            between += [[]] if not opened else []
        else:
            return None
    if opened or not scores or any(each != scores[0] for each in scores):
        return None
    return scores[0], between


def _layer(between: Sequence[Sequence[Size]], *, width: int) -> tuple[int, bool, int] | None:
    """Hidden width of the feed-forwards, whether they are gated, and the number of classes; None if layers differ."""
    before, after = list(between[0]), list(between[-1])
    if before not in ([(width, 3 * width)], [(width, width)] * 3):
        return None
    for length in (3, 4):
        if len(after) < length:
            break
        own, head = after[:length], after[length:]
        found = _feed_forward(own, width)
        alike = all(list(each) == own + before for each in between[1:-1])
        if found and alike and len(head) <= 1 and all(depth == width for depth, _ in head):
            return *found, sum(columns for _, columns in head)
    return None


def _feed_forward(own: Sequence[Size], width: int) -> tuple[int, bool] | None:
    """Hidden width of a feed-forward, and whether it is gated, from the matrix products after a layer's attention."""
    first, *inner, (hidden, last) = own
    gated = inner in ([(width, hidden)] * 2, [(width, 2 * hidden)])
    if first != (width, width) or last != width or not (gated or inner == [(width, hidden)]):
        return None
    return hidden, gated
