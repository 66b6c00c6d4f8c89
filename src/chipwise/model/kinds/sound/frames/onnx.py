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
    """Adds the nodes from the input ``image``, a spectrogram (B, bands, frames), to the residual stream (B, T, D).

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
        x = graph.projection(f"{place}.out", side, k=k, parts={place: conv.channels}, bias=True)
        x = graph.node("Gelu", [x], f"{place}.activation", domain=MICROSOFT)
    return graph.node("Add", [x, graph.tensor("positions.weight", arch.max_tokens, arch.d_model)], "stem.out")


def neighbours(count: int, kernel: int, stride: int) -> npt.NDArray[np.int64]:
    """For each of ``count`` outputs, the indices of the padded frames that the output reads: (count, kernel)."""
    return stride * np.arange(count)[:, None] + np.arange(kernel)


def add_characters(graph: GraphBuilder, arch: ArchSpec, x: str) -> None:
    """Adds the output ``logits`` (B, T, characters), computed from the normed state at each position."""
    graph.projection("logits", x, k=arch.d_model, parts={"head": arch.outputs}, bias=True)
    graph.output("logits", ["batch", arch.max_tokens, arch.outputs])
