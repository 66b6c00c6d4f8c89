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
        fused: The groups of operators that are fused (:data:`chipwise.model.arch.design.FUSIONS`).
        logits: The positions for which a decoder outputs logits.
        output: The kind of output of a text encoder.
        padded: Whether a text encoder takes batches of texts of different lengths.
        last: The block after which unneeded positions are dropped; None if all are kept to the end.
        x: The residual stream, to which the previous block's result is not yet added.
        skip: The previous block's result; None if it has been added.
        positions: Number of positions, if the head needs it.
        read: The input of cross-attention, the mask of padded texts, or the first layer's input in a ranking model.
        parts: Maps each modulation matrix of a denoiser, such as ``modulations.0``, to the names of its vectors.
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
        """The states after the last layer, and after the final norm if there is one."""
        return self.norm("norm") if self.arch.final_norm else self.sum()


def _attend(s: Stream, layer: int, block: Attention, x: str, key: str, last: bool) -> str:
    """Attention over all positions except padding, or within chunks, which need only a reshape of the input."""
    d, place, mask = s.arch.d_model, f"layers.{layer}.attention", s.read or None
    if block.chunk is None:
        return add_heads(s.graph, block, layer=layer, x=x, d_model=d, mask=mask)
    x = reshaped(s.graph, x, [-1, block.chunk, d], f"{place}.stretches")
    heads = add_heads(s.graph, block, layer=layer, x=x, d_model=d, mask=mask)
    return reshaped(s.graph, heads, [-1, s.arch.max_tokens, block.query_width], f"{place}.whole")


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The ONNX nodes that differ between kinds of models.

    Attributes:
        stem: Adds the nodes before the layers.
        head: Adds the nodes after the layers.
        metadata: Returns the metadata entries that only files of this kind have.
        logits: The positions that the output covers; None if the caller of the export chooses them.
        attend: Adds attention without its output projection, given the layer's number, the block, the normed states,
            the prefix of its weights, and whether it is the block ``last``.
        drop: Removes unneeded positions from the stream and from a block's result.
        norm: Adds a block's norm, given the block's place, its name in the graph, and the prefix of its weights.
        gate: Transforms a block's result before it is added to the stream.
        after: Returns a mapping from metadata keys to additional graphs, which run once after the last pass.
    """

    stem: Callable[[Stream], None]
    head: Callable[[Stream], None]
    metadata: Callable[[Stream], dict[str, object]]
    logits: Logits | None
    attend: Callable[[Stream, int, Attention, str, str, bool], str] = _attend
    drop: Callable[[Stream, str, str], str] = lambda s, y, place: y
    norm: Callable[[Stream, Place, str, str], str] = lambda s, at, place, key: s.norm(f"{place}_norm", f"{key}_norm")
    gate: Callable[[Stream, Place, str, str], str] = lambda s, at, y, place: y
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
                s.x = s.norm(f"{place}_norm", f"{key}_norm")
            if s.arch.norm_place == "both":
                s.skip, _ = add_norm(s.graph, s.arch, f"{place}_post_norm", f"{key}_post_norm", s.skip, None)


def _block(s: Stream, kind: Nodes, at: Place, block: Block, *, x: str, key: str) -> str:
    """The block's output, without the residual."""
    layer, name = at
    own = {"layer": layer, "d_model": s.arch.d_model}
    if isinstance(block, FeedForward):
        d_model, joined = s.arch.d_model, "up" in s.fused
        return add_ffn(s.graph, block, layer=layer, key=key, x=x, d_model=d_model, joined=joined)
    if isinstance(block, ConvModule):
        return add_module(s.graph, block, x=x, **own)
    if not isinstance(block, Attention):
        raise Unsupported(f"layer {layer}: a {type(block).__name__} block is not supported")
    if name == "cross":
        return add_cross(s.graph, block, x=x, read=s.read, **own)
    heads = kind.attend(s, layer, block, x, key, at == s.last)
    heads = kind.drop(s, heads, key) if at == s.last else heads
    return add_output(s.graph, block, key=key, x=heads, **own)
