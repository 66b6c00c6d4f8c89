"""Adds the ONNX nodes of a model's layers, for every kind of model that is exported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from chipwise.core.arrays import AnyArray
from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Block
from chipwise.model.arch.mixers import Attention, ConvModule
from chipwise.model.blocks.attention.onnx import add_output
from chipwise.model.blocks.attention.onnx_encoder import add_heads
from chipwise.model.blocks.conv.onnx import add_conv
from chipwise.model.blocks.conv_module.onnx import add_module
from chipwise.model.blocks.cross.onnx import add_cross
from chipwise.model.blocks.ffn.onnx import add_ffn
from chipwise.model.blocks.lowering import Place
from chipwise.model.blocks.norm.onnx import add_norm
from chipwise.model.blocks.onnx_graph import GraphBuilder, reshaped

Logits = Literal["last", "all"]
Output = Literal["mean", "pooler", "states"]
Weights = Mapping[str, AnyArray]


@dataclass(kw_only=True)
class Stream:
    """The residual stream while a graph's nodes are added.

    Attributes:
        graph: The nodes so far.
        arch: The model.
        fused: What is one node (:data:`chipwise.model.arch.design.FUSIONS`).
        logits: The positions of a decoder's output.
        output: What an encoder of text gives.
        padded: Whether an encoder takes texts of several lengths.
        last: The block after which only some positions continue; None if all do.
        x: The stream, without the last block's result.
        skip: That result.
        positions: How many positions continue, where the head must know.
        read: What cross-attention sees, or the mask of texts, or what went into a ranking model's layers.
        parts: Vectors that modulate each layer, by name.
    """

    graph: GraphBuilder
    arch: ArchSpec
    fused: tuple[str, ...]
    logits: Logits = "last"
    output: Output = "mean"
    padded: bool = False
    last: Place | None = None
    x: str = ""
    skip: str | None = None
    positions: int = 0
    read: str = ""
    parts: dict[str, list[str]] = field(default_factory=dict)

    def norm(self, place: str, key: str | None = None) -> str:
        """Adds the previous block's result to the stream; returns the normed sum."""
        normed, self.x = add_norm(self.graph, self.arch, place, key or place, self.x, self.skip)
        self.skip = None
        return normed

    def sum(self, place: str = "stream") -> str:
        """Adds the previous block's result, if any, to the stream; returns the sum."""
        if self.skip is not None:
            self.x = self.graph.node("Add", [self.x, self.skip], place)
        self.skip = None
        return self.x

    def end(self) -> str:
        """The states after the layers, normed if the model has a final norm."""
        return self.norm("norm") if self.arch.final_norm else self.sum()


def _attend(s: Stream, layer: int, block: Attention, x: str, key: str, last: bool) -> str:
    """Scores and values over all positions that are no padding, or within stretches, which no value is moved for."""
    d, place, mask = s.arch.d_model, f"layers.{layer}.attention", s.read or None
    if block.chunk is None:
        return add_heads(s.graph, block, layer=layer, x=x, d_model=d, mask=mask)
    x = reshaped(s.graph, x, [-1, block.chunk, d], f"{place}.stretches")
    heads = add_heads(s.graph, block, layer=layer, x=x, d_model=d, mask=mask)
    return reshaped(s.graph, heads, [-1, s.arch.max_tokens, block.query_width], f"{place}.whole")


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Differences between ONNX graphs of kinds of models.

    Attributes:
        stem: Adds what comes before the layers.
        head: Adds what follows the layers.
        metadata: What the file's metadata say of this kind alone.
        logits: The positions that its output is of; None if an export chooses.
        attend: Scores and values of normed positions, given the layer's number, the block, the positions, the name of
            its weights, and whether only some positions continue after it.
        drop: Takes the positions that do not continue from the stream, and from what a block computes of it.
        norm: The input of a block, of its place, where it stands in the graph, and the name of its weights.
        gate: What a block's result is made into before it is added.
        weights: The weights as the graph has them.
        after: A second graph, which runs once after the last pass, by the name of its metadata.
    """

    stem: Callable[[Stream], None]
    head: Callable[[Stream], None]
    metadata: Callable[[Stream], dict[str, object]]
    logits: Logits | None
    attend: Callable[[Stream, int, Attention, str, str, bool], str] = _attend
    drop: Callable[[Stream, str, str], str] = lambda s, y, place: y
    norm: Callable[[Stream, Place, str, str], str] = lambda s, at, place, key: s.norm(f"{place}_norm", f"{key}_norm")
    gate: Callable[[Stream, Place, str, str], str] = lambda s, at, y, place: y
    weights: Callable[[ArchSpec, Weights], Weights] = lambda arch, weights: weights
    after: Callable[[ArchSpec, Weights], Mapping[str, GraphBuilder]] = lambda arch, weights: {}


def add_layers(s: Stream, kind: Nodes) -> None:
    """Adds the nodes of all layers."""
    behind = s.arch.norm_place == "post"
    for i, layer in enumerate(s.arch.layers):
        owner = i if layer.shares is None else layer.shares
        for name, block in layer.named_blocks():
            at = (i, name)
            place, key = (f"layers.{number}.{name}" for number in (i, owner))
            x = s.x if behind else kind.norm(s, at, place, key)
            if taps := getattr(layer, f"{name}_conv", 0):
                state, sizes = f"{i}.{name}_conv", {"taps": taps, "d_model": s.arch.d_model}
                x = add_conv(s.graph, state=state, place=f"{place}.conv", key=f"{key}_conv", x=x, **sizes)
            if at == s.last and name == "ffn":
                x = kind.drop(s, x, place)
            s.skip = kind.gate(s, at, _block(s, kind, at, block, x=x, key=key), place)
            if behind:
                s.x = s.norm(f"{place}_norm")


def _block(s: Stream, kind: Nodes, at: Place, block: Block, *, x: str, key: str) -> str:
    """The block's output, without the residual."""
    layer, name = at
    own = {"layer": layer, "d_model": s.arch.d_model}
    if isinstance(block, FeedForward):
        return add_ffn(s.graph, block, key=key, x=x, joined="up" in s.fused, **own)
    if isinstance(block, ConvModule):
        return add_module(s.graph, block, x=x, **own)
    if not isinstance(block, Attention):
        raise Unsupported(f"layer {layer}: a {type(block).__name__} block is not built")
    if name == "cross":
        return add_cross(s.graph, block, x=x, read=s.read, **own)
    heads = kind.attend(s, layer, block, x, key, at == s.last)
    heads = kind.drop(s, heads, key) if at == s.last else heads
    return add_output(s.graph, block, key=key, x=heads, **own)
