"""The stem of a pretrained audio encoder as ONNX nodes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.norm.onnx import add_norm
from chipwise.model.blocks.onnx_graph import MICROSOFT, GraphBuilder
from chipwise.model.kinds.sound.stem import SoundConv, SoundStem

CONV_EPS = 1e-5  # epsilon of norms between convolutions


def add_sound(graph: GraphBuilder, arch: ArchSpec, stem: SoundStem) -> str:
    """The residual stream (B, T, D) from the input ``sound``.

    ``sound`` is (B, samples) or spectrograms (B, bands, frames). The length is dynamic, unless the model has a position
    table.
    """
    length: int | str = stem.frames if stem.position_rows else "length"
    shape: list[int | str] = ["batch", length] if stem.channels == 1 else ["batch", stem.channels, length]
    x = graph.input("sound", TensorProto.FLOAT, shape)
    if stem.channels == 1:
        axis = graph.store("one", lambda: np.array([1], np.int64))
        x = graph.node("Unsqueeze", [x, axis], "stem.channel")
    for i, (conv, into) in enumerate(zip(stem.convs, stem.conv_inputs(), strict=True)):
        x = _add_conv(graph, conv, f"stem.convs.{i}", x, into=into)
    x = graph.node("Transpose", [x], "stem.turned", perm=[0, 2, 1])
    if stem.matrix_norm:
        ends = [graph.vector(f"stem.norm.{kind}", stem.values) for kind in ("weight", "bias")]
        x = graph.node("LayerNormalization", [x, *ends], "stem.norm", axis=-1, epsilon=arch.norm_eps)
    if stem.matrix:
        key = "stem.projection"
        x = graph.projection("stem.projected", x, parts=[key], key=key, k=stem.values, widths=[arch.d_model], bias=True)
    if stem.position_taps:
        x = graph.node("Add", [x, _add_places(graph, arch, stem, x)], "stem.placed")
    if stem.position_rows:
        table = graph.store("stem.positions.weight", lambda: _table(graph, arch, stem))
        x = graph.node("Add", [x, table], "stem.placed")
    if arch.embedding_norm:
        x, _ = add_norm(graph, arch, "embedding_norm", "embedding_norm", x, None)
    return x


def _add_conv(graph: GraphBuilder, conv: SoundConv, key: str, x: str, *, into: int) -> str:
    shape = (conv.channels, into, conv.kernel)
    inputs = [x, graph.store(f"{key}.weight", lambda: graph.weight(f"{key}.weight", shape))]
    if conv.bias:
        inputs.append(graph.vector(f"{key}.bias", conv.channels))
    sizes = {"kernel_shape": [conv.kernel], "strides": [conv.stride], "pads": [conv.pad] * 2}
    x = graph.node("Conv", inputs, f"{key}.out", **sizes)
    if conv.norm != "none":
        ends = [graph.vector(f"{key}.norm.{kind}", conv.channels) for kind in ("weight", "bias")]
        if conv.norm == "group":  # normed per channel, over time
            x = graph.node("InstanceNormalization", [x, *ends], f"{key}.normed", epsilon=CONV_EPS)
        else:
            turned = graph.node("Transpose", [x], f"{key}.turned", perm=[0, 2, 1])
            normed = graph.node("LayerNormalization", [turned, *ends], f"{key}.norm", axis=-1, epsilon=CONV_EPS)
            x = graph.node("Transpose", [normed], f"{key}.normed", perm=[0, 2, 1])
    return graph.node("Gelu", [x], f"{key}.activation", domain=MICROSOFT)


def _add_places(graph: GraphBuilder, arch: ArchSpec, stem: SoundStem, x: str) -> str:
    """Position embeddings by a wide convolution that keeps the length; an even kernel has one tap more to the left."""
    d, taps, key = arch.d_model, stem.position_taps, "stem.places"

    def weight() -> npt.NDArray[np.float32]:
        """The kernel with weight norm applied: each tap's values are scaled to the stored norm."""
        values = graph.weight(f"{key}.weight_v", (d, d // stem.position_groups, taps))
        lengths = np.sqrt((values.astype(np.float64) ** 2).sum((0, 1), keepdims=True))
        scaled = graph.weight(f"{key}.weight_g", (1, 1, taps)) * values / lengths
        return np.asarray(scaled, np.float32)

    turned = graph.node("Transpose", [x], f"{key}.turned", perm=[0, 2, 1])
    inputs = [turned, graph.store(f"{key}.weight", weight), graph.vector(f"{key}.bias", d)]
    pads = [taps // 2, taps // 2 - (taps % 2 == 0)]
    found = graph.node("Conv", inputs, f"{key}.out", kernel_shape=[taps], pads=pads, group=stem.position_groups)
    active = graph.node("Gelu", [found], f"{key}.activation", domain=MICROSOFT)
    return graph.node("Transpose", [active], f"{key}.back", perm=[0, 2, 1])


def _table(graph: GraphBuilder, arch: ArchSpec, stem: SoundStem) -> npt.NDArray[np.float32]:
    return graph.weight("stem.positions.weight", (stem.position_rows, arch.d_model))[: stem.tokens]
