"""Patches and the head over classes as ONNX nodes.

One table holds everything that does not depend on the image: positions, plus the class token in the first row and the
projection's bias in all other rows. Zeros are put in front of the patches, and the table is added.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from chipwise.core.arrays import AnyArray
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.onnx_graph import MICROSOFT, GraphBuilder, reshaped
from chipwise.model.kinds.image.patches.lower import adds_table
from chipwise.model.kinds.image.stem import CONV_EDGE, CONV_STRIDE, ImageStem


def add_patches(graph: GraphBuilder, arch: ArchSpec, stem: ImageStem) -> str:
    """Adds the nodes from the input ``image`` (B, C, Y, X), or (B, C, X) for signals, to the residual stream (B, T, D).

    If a question follows, the result is the patches without positions, which the caller adds later.
    """
    axes = stem.axes
    x = graph.input("image", TensorProto.FLOAT, ["batch", *stem.shape])
    edge, pad = CONV_EDGE, CONV_EDGE // 2
    for i, (into, out) in enumerate(stem.conv_shapes()):
        key = f"stem.convs.{i}"
        weight = graph.tensor(f"{key}.weight", out, into, *([edge] * axes))
        bias = graph.tensor(f"{key}.bias", out)
        sizes = {"kernel_shape": [edge] * axes, "strides": [CONV_STRIDE] * axes, "pads": [pad] * 2 * axes}
        x = graph.node("Conv", [x, weight, bias], key, **sizes)
        x = graph.node("Gelu", [x], f"stem.activations.{i}", domain=MICROSOFT)
    channels = stem.values // stem.edge**axes
    if stem.edge == 1:
        x = reshaped(graph, x, [0, channels, stem.patches], "stem.rows")
        x = graph.node("Transpose", [x], "stem.patches", perm=[0, 2, 1])
    else:
        x = reshaped(graph, x, [0, channels, *([stem.grid, stem.edge] * axes)], "stem.rows")
        x = graph.node("Transpose", [x], "stem.cut", perm=[0, 2, 4, 1, 3, 5] if axes == 2 else [0, 2, 1, 3])
        x = reshaped(graph, x, [0, stem.patches, stem.values], "stem.patches")
    x = graph.projection("stem.projected", x, k=stem.values, parts={"stem.projection": arch.d_model})
    if stem.prefix_tokens:
        room = graph.store("stem.room", lambda: np.array([0, stem.prefix_tokens, 0, 0, 0, 0], np.int64))
        x = graph.node("Pad", [x, room], "stem.padded")
    if not adds_table(arch, stem):
        return x
    return graph.node("Add", [x, graph.store("positions.weight", lambda: _table(graph, arch, stem))], "stem.out")


def _table(graph: GraphBuilder, arch: ArchSpec, stem: ImageStem) -> AnyArray:
    """The table that is added to the padded patches: (T, D), or (1, D) if all its rows are equal."""
    width = arch.d_model
    if arch.positions == "learned":
        table = graph.weight("positions.weight", (arch.max_tokens, width)).copy()
    else:
        table = np.zeros((stem.tokens if stem.prefix_tokens else 1, width), np.float32)
    if stem.prefix_tokens:
        table[: stem.prefix_tokens] += graph.weight("stem.prefix.weight", (stem.prefix_tokens, width))
    if stem.bias:
        table[stem.prefix_tokens :] += graph.weight("stem.projection.bias", (width,))
    return table


def add_first(graph: GraphBuilder, x: str, *, last: bool = False) -> str:
    """Adds a node that keeps only the first position of ``x`` (the last with ``last``), (B, 1, D)."""
    name = "last" if last else "first"
    place = graph.store(name, lambda: np.array([-1 if last else 0], np.int64))
    return graph.node("Gather", [x, place], f"{x}.{name}", axis=1)


def add_classes(graph: GraphBuilder, arch: ArchSpec, x: str, *, positions: int) -> None:
    """Adds the output ``logits`` (B, classes), from the mean of ``positions`` normed states (B, positions, D)."""
    axis = graph.store("one", lambda: np.array([1], np.int64))
    if positions == 1:
        x = graph.node("Squeeze", [x, axis], "head.state")
    else:
        x = graph.node("ReduceMean", [x, axis], "head.state", keepdims=0)
    graph.projection("logits", x, k=arch.d_model, parts={"head": arch.outputs}, bias=True)
    graph.output("logits", ["batch", arch.outputs])
