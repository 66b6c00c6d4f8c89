"""A published model that hears, with its weights, as one ONNX graph: sound in, states or logits of positions out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.blocks.attention.onnx import add_output
from chipwise.model.blocks.attention.onnx_encoder import add_heads, with_key_biases
from chipwise.model.blocks.ffn.onnx import add_ffn
from chipwise.model.blocks.norm.onnx import add_norm
from chipwise.model.blocks.onnx_graph import GraphBuilder
from chipwise.model.kinds.sound.hearing.onnx import add_sound
from chipwise.model.kinds.sound.published import LISTENER
from chipwise.model.kinds.sound.stem import SoundStem


def listener_graph(design: Design, weights: Mapping[str, npt.NDArray[Any]]) -> GraphBuilder:
    """The nodes of a model that hears, its input ``sound`` and its output, both in FP32.

    ``sound`` is (B, samples), or a spectrogram (B, bands, frames). The output is ``logits`` (B, positions, characters),
    or ``states`` (B, positions, D) of a model without a head.

    Raises:
        SpecError: A weight is missing or has the wrong shape.
        Unsupported: The weight format has no graph, or the model is not built.
    """
    arch = design.arch
    LISTENER.require(arch, work="exported to ONNX")
    stem: SoundStem = arch.stem
    graph = GraphBuilder(weights=with_key_biases(arch, weights), format_of=design.format_of)
    x, skip = add_sound(graph, arch, stem), None
    after = arch.norm_place == "post"
    for i, layer in enumerate(arch.layers):
        own: dict[str, Any] = {"layer": i, "d_model": arch.d_model}
        place = f"layers.{i}.attention"
        into, x = (x, x) if after else add_norm(graph, arch, f"{place}_norm", f"{place}_norm", x, skip)
        assert layer.attention is not None  # as ``LISTENER.require`` has checked, and of the feed-forward
        assert layer.ffn is not None
        heads = add_heads(graph, layer.attention, x=into, mask=None, **own)
        skip = add_output(graph, layer.attention, key=place, x=heads, **own)
        if after:
            x, _ = add_norm(graph, arch, f"{place}_norm", f"{place}_norm", x, skip)
        place = f"layers.{i}.ffn"
        into, x = (x, x) if after else add_norm(graph, arch, f"{place}_norm", f"{place}_norm", x, skip)
        skip = add_ffn(graph, layer.ffn, key=place, x=into, **own)
        if after:
            x, _ = add_norm(graph, arch, f"{place}_norm", f"{place}_norm", x, skip)
            skip = None
    if arch.final_norm:
        x, _ = add_norm(graph, arch, "norm", "norm", x, skip)
    elif skip is not None:
        x = graph.node("Add", [x, skip], "stream")
    length: int | str = stem.tokens if stem.position_rows else "positions"
    if arch.head == "ctc":
        graph.projection("logits", x, parts=["head"], key="head", k=arch.d_model, widths=[arch.classes], bias=True)
        graph.output("logits", ["batch", length, arch.classes])
    else:
        graph.node("Identity", [x], "states")
        graph.output("states", ["batch", length, arch.d_model])
    return graph


def listener_metadata(arch: ArchSpec) -> dict[str, Any]:
    """The metadata of such a model's file beyond that of every file: what it gives, and a usual request's sound.

    ``gives`` is the shape of a request's output, which the graph leaves open where sounds may have any length.
    """
    LISTENER.require(arch, work="exported to ONNX")
    stem: SoundStem = arch.stem
    ctc = arch.head == "ctc"
    shape = stem.shape if stem.channels > 1 else (stem.frames,)
    given = [stem.tokens, arch.classes if ctc else arch.d_model]
    known = {"image": list(shape), "seconds": stem.seconds, "gives": given}
    return {"encodes": "characters" if ctc else "sound", "kv": [], **known}
