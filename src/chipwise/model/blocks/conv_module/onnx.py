"""The convolution module as ONNX nodes."""

from __future__ import annotations

import numpy as np

from chipwise.model.arch.mixers import ConvModule
from chipwise.model.blocks.onnx_graph import MICROSOFT, GraphBuilder

EPS = 1e-5  # epsilon of the norm


def add_module(graph: GraphBuilder, block: ConvModule, *, layer: int, x: str, d_model: int) -> str:
    """The block's output for ``x`` (B, T, D), without the residual."""
    place, d = f"layers.{layer}.conv", d_model
    into = graph.projection(f"{place}.both", x, k=d, parts={f"{place}.into": 2 * d}, bias=block.bias)
    halves = graph.store(f"halves.{d}", lambda: np.full(2, d, np.int64))
    parts = [f"{place}.half", f"{place}.other"]
    graph.node("Split", [into, halves], parts, axis=-1)
    gate = graph.node("Sigmoid", [parts[1]], f"{place}.gate")
    x = graph.node("Mul", [parts[0], gate], f"{place}.gated")
    x = add_filter(graph, block, place=f"{place}.filtered", key=f"{place}.filter", x=x, d_model=d)
    norm = [graph.tensor(f"{place}.norm.{name}", d) for name in ("weight", "bias")]
    x = graph.node("LayerNormalization", [x, *norm], f"{place}.normed", axis=-1, epsilon=EPS)
    x = graph.node("QuickGelu", [x], f"{place}.activation", domain=MICROSOFT, alpha=1.0)  # SiLU
    return graph.projection(f"{place}.result", x, k=d, parts={f"{place}.out": d}, bias=block.bias)


def add_filter(graph: GraphBuilder, block: ConvModule, *, place: str, key: str, x: str, d_model: int) -> str:
    """Applies the depthwise filter to ``x`` (B, T, D), between two transpositions of positions and channels.

    The filter is the runtime's general convolution. For a centred filter, the general convolution takes half as long
    as the causal kernel, which the short convolutions of decoders use.
    """
    turned = graph.node("Transpose", [x], f"{place}.turned", perm=[0, 2, 1])
    inputs = [turned, graph.tensor(f"{key}.weight", d_model, 1, block.taps)]
    inputs += [graph.tensor(f"{key}.bias", d_model)] if block.bias else []
    pads = [block.taps // 2] * 2
    found = graph.node("Conv", inputs, f"{place}.sums", kernel_shape=[block.taps], pads=pads, group=d_model)
    return graph.node("Transpose", [found], place, perm=[0, 2, 1])
