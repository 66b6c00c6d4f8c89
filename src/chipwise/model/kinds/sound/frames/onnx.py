"""Convolutions over frames and the head over characters as ONNX nodes."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.onnx_graph import MICROSOFT, GraphBuilder, reshaped
from chipwise.model.kinds.sound.stem import SoundStem


def add_frames(graph: GraphBuilder, arch: ArchSpec, stem: SoundStem) -> str:
    """The residual stream (B, T, D) from the input ``image``, a spectrogram (B, bands, frames).

    Neighbouring frames are gathered, concatenated and multiplied, because ONNX Runtime has fast int8 matrix products on
    CPUs, but no fast int8 Conv.
    """
    x = graph.input("image", TensorProto.FLOAT, ["batch", *stem.shape])
    x = graph.node("Transpose", [x], "stem.turned", perm=[0, 2, 1])
    lengths = stem.areas()
    for i, (conv, into) in enumerate(zip(stem.convs, stem.conv_inputs(), strict=True)):
        place, count = f"stem.frames.{i}", lengths[i + 1]
        room = graph.store(f"{place}.room", partial(np.array, [0, conv.pad, 0, 0, conv.pad, 0], np.int64))
        padded = graph.node("Pad", [x, room], f"{place}.padded")
        places = graph.store(f"{place}.places", partial(neighbours, count, conv.kernel, conv.stride))
        seen = graph.node("Gather", [padded, places], f"{place}.seen", axis=1)
        k = conv.kernel * into
        side = reshaped(graph, seen, [0, count, k], f"{place}.side")
        x = graph.projection(f"{place}.out", side, parts=[place], key=place, k=k, widths=[conv.channels], bias=True)
        x = graph.node("Gelu", [x], f"{place}.activation", domain=MICROSOFT)
    shape = (arch.max_tokens, arch.d_model)
    table = graph.store("positions.weight", lambda: graph.weight("positions.weight", shape))
    return graph.node("Add", [x, table], "stem.out")


def neighbours(count: int, kernel: int, stride: int) -> npt.NDArray[np.int64]:
    """Numbers of the padded frames that each of ``count`` outputs reads, (count, kernel)."""
    return stride * np.arange(count)[:, None] + np.arange(kernel)


def add_characters(graph: GraphBuilder, arch: ArchSpec, x: str) -> None:
    """``logits`` (B, T, characters) from every position's normed state."""
    graph.projection("logits", x, parts=["head"], key="head", k=arch.d_model, widths=[arch.outputs], bias=True)
    graph.output("logits", ["batch", arch.max_tokens, arch.outputs])
