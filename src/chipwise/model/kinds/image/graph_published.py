"""Input and output of a pretrained image encoder as ONNX nodes: images in; states, one vector, logits or tokens out.

Learned scale factors of a block's output are folded into its last matrix when the graph is built.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Pooler
from chipwise.model.blocks.attention.onnx_encoder import with_key_biases
from chipwise.model.blocks.ffn.onnx import add_ffn
from chipwise.model.blocks.nodes import Nodes, Stream, Weights
from chipwise.model.blocks.norm.onnx import add_norm
from chipwise.model.blocks.onnx_graph import MICROSOFT, GraphBuilder
from chipwise.model.kinds.image.gives import given_shape, gives
from chipwise.model.kinds.image.graph import attend
from chipwise.model.kinds.image.patches.onnx import add_classes, add_first, add_patches
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.question.projector.onnx import add_projector
from chipwise.model.kinds.question.projector.spec import Projector


def _stem(s: Stream) -> None:
    s.x = add_patches(s.graph, s.arch, s.arch.stem_as(ImageStem))
    if s.arch.embedding_norm:
        s.x = s.norm("embedding_norm")


def _head(s: Stream) -> None:
    """Adds the kind of output that :func:`chipwise.model.kinds.image.gives.gives` returns.

    ``states`` are (B, positions, D), ``vector`` (B, values), ``logits`` (B, classes), ``tokens`` (B, tokens, width).
    """
    graph, arch, kind = s.graph, s.arch, gives(s.arch)
    stem = arch.stem_as(ImageStem)
    if kind == "vector" and arch.head.pooling == "first":  # only this position is used, so only it is summed and normed
        s.x = add_first(graph, s.sum())
    if kind == "logits":
        s.x = _mean(graph, stem, s.sum())
    x = s.end()
    if kind == "tokens":
        x = _tokens(graph, arch, arch.head_as(Projector), stem, x)
    elif arch.head.pooling == "attention":
        x = _pooled(graph, arch, x, positions=stem.tokens)
    if isinstance(arch.head, Pooler):
        parts: dict[str, Any] = {"parts": ["pooler"], "key": "pooler", "k": arch.d_model, "widths": [arch.d_model]}
        x = graph.node("Tanh", [graph.projection("pooler.out", x, bias=True, **parts)], "pooler.tanh")
    if arch.head.projection:
        widths = [arch.head.projection]
        x = graph.projection("projected", x, parts=["projection"], key="projection", k=arch.d_model, widths=widths)
    if kind == "logits":
        add_classes(graph, arch, x, positions=1)
        return
    if kind == "vector":
        axis = graph.store("one", lambda: np.array([1], np.int64))
        graph.node("Squeeze", [x, axis], kind)
    else:
        graph.node("Identity", [x], kind)
    graph.output(kind, ["batch", *given_shape(arch, stem)])


def _metadata(s: Stream) -> dict[str, object]:
    """Metadata: shape of the image, and the kind of output."""
    stem = s.arch.stem_as(ImageStem)
    return {"encodes": gives(s.arch), "image": list(stem.shape), "kv": [], "gives": list(given_shape(s.arch, stem))}


def _weights(arch: ArchSpec, weights: Weights) -> Weights:
    """``weights`` with the learned scale factors of each block folded into its last matrix."""
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
    return with_key_biases(arch, found)


def _tokens(graph: GraphBuilder, arch: ArchSpec, projector: Projector, stem: ImageStem, x: str) -> str:
    """The decoder's tokens (B, tokens, width): the patches, joined or averaged, times the projector's matrices."""

    x = add_projector(graph, projector, stem, _patches(graph, stem, x), d_model=arch.d_model, norm=arch)
    if not projector.bias:
        return x
    key = f"projector.matrices.{len(projector.widths) - 1}.bias"
    return graph.node("Add", [x, graph.vector(key, projector.widths[-1])], "projector.out")


def _patches(graph: GraphBuilder, stem: ImageStem, x: str) -> str:
    """The stream without the positions before the patches."""
    if not stem.prefix_tokens:
        return x

    def number(name: str, value: int) -> str:
        return graph.store(f"patches.{name}", lambda: np.array([value], np.int64))

    ends = (number("from", stem.prefix_tokens), number("to", stem.tokens), number("axis", 1))
    return graph.node("Slice", [x, *ends], "patches")


def _mean(graph: GraphBuilder, stem: ImageStem, x: str) -> str:
    """Mean pooling of the patches, (B, 1, D)."""
    axis = graph.store("one", lambda: np.array([1], np.int64))
    return graph.node("ReduceMean", [_patches(graph, stem, x), axis], "mean", keepdims=1)


def _pooled(graph: GraphBuilder, arch: ArchSpec, x: str, *, positions: int) -> str:
    """Attention pooling: one learned query over all positions, a norm, and a feed-forward; (B, 1, D)."""
    d, last = arch.d_model, arch.layers[-1]
    assert last.attention is not None  # as ``IMAGE_ENCODER.require`` has checked; likewise the feed-forward
    assert last.ffn is not None

    def query() -> AnyArray:
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


NODES = Nodes(stem=_stem, attend=attend, head=_head, metadata=_metadata, logits="all", weights=_weights)
