"""A published encoder of images, with its weights, as one ONNX graph: images in; states, one vector, scores of
classes or tokens out.

``model/kinds/image/lower_published.py`` mirrors it. Learned factors of a block's result are multiplied into its last
matrix when the graph is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.blocks.attention.onnx import add_output
from chipwise.model.blocks.attention.onnx_encoder import with_key_biases
from chipwise.model.blocks.ffn.onnx import add_ffn
from chipwise.model.blocks.norm.onnx import add_norm
from chipwise.model.blocks.onnx_graph import MICROSOFT, GraphBuilder
from chipwise.model.kinds.image.gives import as_run, given_shape, gives
from chipwise.model.kinds.image.patches.onnx import add_classes, add_first, add_patches
from chipwise.model.kinds.image.published import IMAGE_ENCODER
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.image.windows.onnx import add_attend
from chipwise.model.kinds.question.projector.onnx import add_projector
from chipwise.model.kinds.question.projector.spec import Projector


def image_encoder_graph(design: Design, weights: Mapping[str, npt.NDArray[Any]]) -> GraphBuilder:
    """The nodes of an encoder of images, its input ``image`` (B, C, Y, X) and its one output, both in FP32.

    The output is ``states`` (B, positions, D), ``vector`` (B, values), ``logits`` (B, classes), or ``tokens``
    (B, tokens, decoder's width) of a tower; see :func:`chipwise.model.kinds.image.published.gives`.

    Raises:
        SpecError: A weight is missing or has the wrong shape.
        Unsupported: The weight format has no graph, or the model is not built.
    """
    IMAGE_ENCODER.require(design.arch, work="exported to ONNX")
    stem: ImageStem = design.arch.stem
    arch = as_run(design.arch)
    graph = GraphBuilder(weights=with_key_biases(arch, _scaled(arch, weights)), format_of=design.format_of)
    x, skip = add_patches(graph, arch, stem), None
    if arch.embedding_norm:
        x, _ = add_norm(graph, arch, "embedding_norm", "embedding_norm", x, None)
    for i, layer in enumerate(arch.layers):
        own: dict[str, Any] = {"layer": i, "d_model": arch.d_model}
        if layer.attention is not None:
            place = f"layers.{i}.attention"
            normed, x = add_norm(graph, arch, f"{place}_norm", f"{place}_norm", x, skip)
            heads = add_attend(graph, layer.attention, stem, x=normed, **own)
            skip = add_output(graph, layer.attention, key=place, x=heads, **own)
        if layer.ffn is not None:
            place = f"layers.{i}.ffn"
            normed, x = add_norm(graph, arch, f"{place}_norm", f"{place}_norm", x, skip)
            skip = add_ffn(graph, layer.ffn, key=place, x=normed, **own)
    kind = gives(arch)
    one = kind == "vector" and arch.pooling == "first"
    if one:  # only the first position is read: the sum and the norm are its own
        x = x if skip is None else graph.node("Add", [x, skip], "stream")
        x, skip = add_first(graph, x), None
    if kind == "logits":
        x, skip = _mean(graph, stem, x if skip is None else graph.node("Add", [x, skip], "stream")), None
    if arch.final_norm:
        x, _ = add_norm(graph, arch, "norm", "norm", x, skip)
    elif skip is not None:
        x = graph.node("Add", [x, skip], "stream")
    if arch.projector is not None:
        x = _tokens(graph, arch, arch.projector, stem, x)
    elif arch.pooling == "attention":
        x = _pooled(graph, arch, x, positions=stem.tokens)
    if arch.head == "pooler":
        parts: dict[str, Any] = {"parts": ["pooler"], "key": "pooler", "k": arch.d_model, "widths": [arch.d_model]}
        x = graph.node("Tanh", [graph.projection("pooler.out", x, bias=True, **parts)], "pooler.tanh")
    if arch.projection:
        widths = [arch.projection]
        x = graph.projection("projected", x, parts=["projection"], key="projection", k=arch.d_model, widths=widths)
    if kind == "logits":
        add_classes(graph, arch, x, positions=1)
        return graph
    if kind == "vector":
        axis = graph.store("one", lambda: np.array([1], np.int64))
        graph.node("Squeeze", [x, axis], kind)
    else:
        graph.node("Identity", [x], kind)
    graph.output(kind, ["batch", *given_shape(arch, stem)])
    return graph


def _scaled(arch: ArchSpec, weights: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """``weights`` with the learned factors of each block's result multiplied into the block's last matrix."""
    found = dict(weights)
    for i, layer in enumerate(arch.layers):
        if not layer.scale:
            continue
        for block, name, matrix in ((layer.attention, "attention", "out"), (layer.ffn, "ffn", "down")):
            factors = found.get(f"layers.{i}.{name}_scale.weight")
            if block is None or factors is None:
                continue
            for kind in ("weight", "bias"):
                key = f"layers.{i}.{name}.{matrix}.{kind}"
                if key in found:
                    found[key] = found[key] * (factors[:, None] if kind == "weight" else factors)
    return found


def _tokens(graph: GraphBuilder, arch: ArchSpec, projector: Projector, stem: ImageStem, x: str) -> str:
    """The decoder's tokens (B, tokens, width): the patches alone, joined or averaged, and the matrices."""

    x = add_projector(graph, projector, stem, _patches(graph, stem, x), d_model=arch.d_model, norm=arch)
    if not projector.bias:
        return x
    key = f"projector.matrices.{len(projector.widths) - 1}.bias"
    return graph.node("Add", [x, graph.vector(key, projector.widths[-1])], "projector.out")


def _patches(graph: GraphBuilder, stem: ImageStem, x: str) -> str:
    """The positions of patches alone."""
    if not stem.prefix_tokens:
        return x

    def number(name: str, value: int) -> str:
        return graph.store(f"patches.{name}", lambda: np.array([value], np.int64))

    ends = (number("from", stem.prefix_tokens), number("to", stem.tokens), number("axis", 1))
    return graph.node("Slice", [x, *ends], "patches")


def _mean(graph: GraphBuilder, stem: ImageStem, x: str) -> str:
    """The mean of the patches, (B, 1, D)."""
    axis = graph.store("one", lambda: np.array([1], np.int64))
    return graph.node("ReduceMean", [_patches(graph, stem, x), axis], "mean", keepdims=1)


def _pooled(graph: GraphBuilder, arch: ArchSpec, x: str, *, positions: int) -> str:
    """One learned query over all positions, a norm, and a feed-forward: (B, 1, D)."""
    d, last = arch.d_model, arch.layers[-1]
    assert last.attention is not None  # as ``IMAGE_ENCODER.require`` has checked, and of the feed-forward
    assert last.ffn is not None

    def query() -> npt.NDArray[Any]:
        matrix, bias = graph.weight("pool.q.weight", (d, d)), graph.weight("pool.q.bias", (d,))
        return (graph.weight("pool.query.weight", (1, d)) @ matrix.T + bias)[None]

    batch = graph.node("Shape", [x], "pool.batch", start=0, end=1)
    one = graph.store("pool.one", lambda: np.array([1, d], np.int64))
    shape = graph.node("Concat", [batch, one], "pool.shape", axis=0)
    asked = graph.node("Expand", [graph.store("pool.asked", query), shape], "pool.queries")
    packed = graph.projection("pool.kv", x, parts=["pool.k", "pool.v"], key="pool.kv", k=d, widths=[d, d], bias=True)
    parts = ["pool.keys", "pool.values"]
    graph.node("Split", [packed], parts, axis=-1, num_outputs=2)
    heads = last.attention.heads
    found = graph.node("MultiHeadAttention", [asked, *parts], "pool.attend", domain=MICROSOFT, num_heads=heads)
    x = graph.projection("pool.summed", found, parts=["pool.out"], key="pool.out", k=d, widths=[d], bias=True)
    normed, x = add_norm(graph, arch, "pool.norm", "pool.norm", x, None)
    fed = add_ffn(graph, last.ffn, layer=len(arch.layers), key="pool.ffn", x=normed, d_model=d)
    return graph.node("Add", [x, fed], "pool.result")


def image_encoder_metadata(arch: ArchSpec) -> dict[str, Any]:
    """The metadata of such a model's file beyond that of every file: the image that it takes, and what it gives."""
    IMAGE_ENCODER.require(arch, work="exported to ONNX")
    stem: ImageStem = arch.stem
    return {"encodes": gives(arch), "image": list(stem.shape), "kv": [], "gives": list(given_shape(arch, stem))}
