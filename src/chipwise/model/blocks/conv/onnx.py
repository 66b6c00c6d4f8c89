"""The short convolution as ONNX nodes: a convolution that keeps its last inputs, between two transpositions."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from chipwise.core.arrays import AnyArray
from chipwise.model.blocks.onnx_graph import MICROSOFT, GraphBuilder


def add_conv(graph: GraphBuilder, *, state: str, place: str, key: str, x: str, taps: int, d_model: int) -> str:
    """Adds the nodes that compute ``x`` plus its convolution, (B, T, D).

    ``state`` (``0.attention_conv``) is part of the cached inputs' names; ``key`` is the prefix of the weights' names.
    The residual is folded into the weights: 1 is added to the last tap, which is for the position itself.
    """

    def weights() -> AnyArray:
        with_residual = graph.weight(f"{key}.weight", (d_model, 1, taps)).copy()
        with_residual[:, 0, -1] += np.float32(1)
        return with_residual

    shape: list[int | str] = ["batch", d_model, taps - 1]
    past, present = graph.input(f"past.{state}", TensorProto.FLOAT, shape), f"present.{state}"
    graph.output(present, shape)
    turned = graph.node("Transpose", [x], f"{place}.turned", perm=[0, 2, 1])
    inputs = [turned, graph.store(f"{key}.weight", weights), "", past]
    graph.node("CausalConvWithState", inputs, [f"{place}.sum", present], domain=MICROSOFT, activation="none")
    return graph.node("Transpose", [f"{place}.sum"], place, perm=[0, 2, 1])
