"""Attention over an image as ONNX nodes. The file stores the bias of each pair of positions."""

from __future__ import annotations

from chipwise.core.arrays import AnyArray
from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.attention.onnx_encoder import add_heads
from chipwise.model.blocks.onnx_graph import GraphBuilder
from chipwise.model.kinds.image.distances.spec import bias_places
from chipwise.model.kinds.image.stem import ImageStem


def add_attend(graph: GraphBuilder, block: Attention, stem: ImageStem, *, layer: int, x: str, d_model: int) -> str:
    """Attention of ``x`` over all positions of its image, before the output projection."""

    def pairs() -> AnyArray:
        rows = graph.weight(f"positions.{layer}.weight", (block.relative_buckets, block.heads))
        return rows[bias_places(stem)].transpose(2, 0, 1)[None]

    bias = graph.store(f"layers.{layer}.attention.biases", pairs) if block.relative_buckets else None
    return add_heads(graph, block, layer=layer, x=x, d_model=d_model, mask=None, bias=bias)
