"""Input and output of a decoder as ONNX nodes, and attention with a KV cache."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.attention.onnx import add_attention
from chipwise.model.blocks.embedding.onnx import add_embedding, add_head
from chipwise.model.blocks.nodes import Nodes, Stream
from chipwise.model.blocks.norm.onnx import add_head_norm


def _stem(s: Stream) -> None:
    s.x = add_embedding(s.graph, s.arch)
    if any(layer.attention is not None for layer in s.arch.layers):
        s.graph.input("seqlens_k", TensorProto.INT32, ["batch"])
        s.graph.input("total_sequence_length", TensorProto.INT32, [])
    if s.logits == "last" and s.last is None:
        s.x = _last(s, s.x)


def _attend(s: Stream, layer: int, block: Attention, x: str, key: str, last: bool) -> str:
    def head_norm(place: str, key: str, x: str, *, heads: int, head_size: int) -> str:
        return add_head_norm(s.graph, place, key, x, heads=heads, head_size=head_size, eps=s.arch.norm_eps)

    return add_attention(
        s.graph,
        block,
        layer=layer,
        key=key,
        x=x,
        d_model=s.arch.d_model,
        max_tokens=s.arch.max_tokens,
        rope_theta=s.arch.rope_theta,
        head_norm=head_norm,
    )


def _last(s: Stream, x: str) -> str:
    """The last position of each sequence."""
    last = s.graph.store("last", lambda: np.array([-1], np.int64))
    return s.graph.node("Gather", [x, last], f"{x}.last", axis=1)


def _drop(s: Stream, y: str, place: str) -> str:
    s.x = _last(s, s.x)
    return _last(s, y)


def _head(s: Stream) -> None:
    add_head(s.graph, s.arch, s.end())
    s.graph.output("logits", ["batch", 1 if s.logits == "last" else "tokens", s.arch.vocab_size])


NODES = Nodes(stem=_stem, attend=_attend, head=_head, drop=_drop, metadata=lambda s: {}, logits=None)
