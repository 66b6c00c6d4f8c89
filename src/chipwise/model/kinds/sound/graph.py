"""A transcribing model with its weights as one ONNX graph: spectrograms in, logits of every position out.

``lowering_sound.py`` mirrors it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.attention.onnx import add_output
from chipwise.model.blocks.attention.onnx_encoder import add_heads
from chipwise.model.blocks.conv_module.onnx import add_module
from chipwise.model.blocks.ffn.onnx import add_ffn
from chipwise.model.blocks.norm.onnx import add_norm
from chipwise.model.blocks.onnx_graph import GraphBuilder, reshaped
from chipwise.model.kinds.sound.form import TRANSCRIBER
from chipwise.model.kinds.sound.frames.onnx import add_characters, add_frames
from chipwise.model.kinds.sound.stem import SoundStem


def transcriber_graph(design: Design, weights: Mapping[str, npt.NDArray[Any]]) -> GraphBuilder:
    """The nodes of a transcribing model, its input ``image``, a spectrogram (B, bands, frames) in FP32, and its output.

    That is ``logits`` (B, positions, characters).

    Raises:
        SpecError: A weight is missing or has the wrong shape.
        Unsupported: The weight format has no graph, or the model is not built.
    """
    arch = design.arch
    TRANSCRIBER.require(arch, work="exported to ONNX")
    stem: SoundStem = arch.stem
    graph = GraphBuilder(weights=weights, format_of=design.format_of)
    x, skip = add_frames(graph, arch, stem), None
    for i, layer in enumerate(arch.layers):
        if layer.attention is not None:
            place = f"layers.{i}.attention"
            normed, x = add_norm(graph, arch, f"{place}_norm", f"{place}_norm", x, skip)
            heads = _attend(graph, arch, layer.attention, layer=i, x=normed)
            skip = add_output(graph, layer.attention, layer=i, key=place, x=heads, d_model=arch.d_model)
        if layer.conv is not None:
            place = f"layers.{i}.conv_norm"
            normed, x = add_norm(graph, arch, place, place, x, skip)
            skip = add_module(graph, layer.conv, layer=i, x=normed, d_model=arch.d_model)
        if layer.ffn is not None:
            place = f"layers.{i}.ffn"
            normed, x = add_norm(graph, arch, f"{place}_norm", f"{place}_norm", x, skip)
            skip = add_ffn(graph, layer.ffn, layer=i, key=place, x=normed, d_model=arch.d_model)
    normed, _ = add_norm(graph, arch, "norm", "norm", x, skip)
    add_characters(graph, arch, normed)
    return graph


def _attend(graph: GraphBuilder, arch: ArchSpec, block: Attention, *, layer: int, x: str) -> str:
    """Scores and values over the whole sound, or within stretches of it, which no value is moved for."""
    d, place = arch.d_model, f"layers.{layer}.attention"
    if block.chunk is None:
        return add_heads(graph, block, layer=layer, x=x, d_model=d, mask=None)
    x = reshaped(graph, x, [-1, block.chunk, d], f"{place}.stretches")
    heads = add_heads(graph, block, layer=layer, x=x, d_model=d, mask=None)
    return reshaped(graph, heads, [-1, arch.max_tokens, block.query_width], f"{place}.whole")


def transcriber_metadata(arch: ArchSpec) -> dict[str, Any]:
    """The metadata of a transcribing model's file beyond that of every file: the spectrogram that it takes."""
    TRANSCRIBER.require(arch, work="exported to ONNX")
    stem: SoundStem = arch.stem
    return {"encodes": "characters", "image": list(stem.shape), "seconds": stem.seconds, "kv": []}
