"""Lists the operators of a model's layers, for every kind of model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Block
from chipwise.model.arch.mixers import Attention, ConvModule
from chipwise.model.blocks.attention.lower import lower_encoder
from chipwise.model.blocks.conv.lower import lower as lower_conv
from chipwise.model.blocks.conv_module.lower import lower_module
from chipwise.model.blocks.cross.lower import lower_cross
from chipwise.model.blocks.embedding.lower import lower_cut
from chipwise.model.blocks.ffn.lower import lower as lower_ffn
from chipwise.model.blocks.norm.lower import lower as lower_norm
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.graph import Placed
from chipwise.model.ops.op import Op

Place = tuple[int, str]
"""A block's place in the model: its layer's number, and the name of its field in the layer."""
Named = Iterable[tuple[str, Op]]


@dataclass(kw_only=True)
class Pass:
    """The state of a forward pass while its operators are listed.

    Attributes:
        arch: The model.
        head: The weight format of the matrices outside the layers.
        layers: The weight format of each layer's matrices.
        fused: The groups of operators that are fused (:data:`chipwise.model.arch.design.FUSIONS`).
        batch: Number of sequences, images, sounds or requests.
        tokens: Positions per sequence at the current operator.
        past: Positions per sequence in the cache.
        last_only: Whether only the last position's output is needed.
        last: The block after which unneeded positions are dropped; None if all are kept to the end.
        skip: Whether the previous block's result has not yet been added to the residual stream.
        placed: The operators so far.
    """

    arch: ArchSpec
    head: str
    layers: Sequence[str]
    fused: tuple[str, ...]
    batch: int
    tokens: int = 0
    past: int = 0
    last_only: bool = True
    last: Place | None = None
    skip: bool = False
    placed: list[Placed] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Number of positions in the whole batch."""
        return self.batch * self.tokens

    def put(self, place: str, ops: Named) -> None:
        """Adds operators, with ``place`` as the prefix of their names."""
        self.placed += [Placed(place=f"{place}.{name}" if name else place, op=op) for name, op in ops]

    def put_norm(self, place: str) -> None:
        """Adds a norm operator, which first adds the previous block's result to the residual stream."""
        self.put(place, [("", lower_norm(self.arch, rows=self.rows, skip=self.skip))])
        self.skip = False

    def put_sum(self) -> None:
        """Adds an operator that adds the previous block's result to the stream, unless a norm has already done that."""
        if self.skip:
            self.put("stream", [("", Elementwise(function="add", elements=self.rows * self.arch.d_model, inputs=2))])
        self.skip = False

    def put_end(self) -> None:
        """Adds the final norm; if there is none, only adds the last block's result to the residual stream."""
        if self.arch.final_norm:
            self.put_norm("norm")
        else:
            self.put_sum()


def _norm(at: Pass) -> Named:
    return [("norm", lower_norm(at.arch, rows=at.rows, skip=at.skip))]


def _nothing(at: Pass) -> Named:
    return ()


def _attend(at: Pass, layer: int, block: Attention, weights: str, last: bool) -> Named:
    """The operators of attention over all positions, or within chunks if the block has chunks."""
    sizes = {"rows": at.rows, "tokens": block.chunk or at.tokens}
    return lower_encoder(block, d_model=at.arch.d_model, weights=weights, first=last, **sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    """The operators that differ between kinds of models.

    Attributes:
        stem: Adds the operators before the layers, and sets ``tokens``.
        head: Adds the operators after the layers.
        attend: Returns the operators of attention, given the layer's number, the block, the format of its matrices, and
            whether it is the block ``last``.
        last: The block after which unneeded positions are dropped; None if all are kept to the end.
        kept: How many positions per sequence remain after the block ``last``.
        norm: Returns the operators before each block.
        gate: Returns the operators after each block.
    """

    stem: Callable[[Pass], None]
    head: Callable[[Pass], None]
    attend: Callable[[Pass, int, Attention, str, bool], Named] = _attend
    last: Callable[[ArchSpec], Place | None] = lambda arch: None
    kept: Callable[[ArchSpec], int] = lambda arch: 1
    norm: Callable[[Pass], Named] = _norm
    gate: Callable[[Pass], Named] = _nothing


def lower_layers(at: Pass, kind: Operators) -> None:
    """Lists the layers' operators.

    If ``at.skip`` is true afterwards, the last block's result has not yet been added to the residual stream.
    """
    behind = at.arch.norm_place == "post"
    for i, layer in enumerate(at.arch.layers):
        for name, block in layer.named_blocks():
            place, last = f"layers.{i}.{name}", (i, name) == at.last
            if not behind:
                at.put(place, kind.norm(at))
            if taps := getattr(layer, f"{name}_conv", 0):
                conv = lower_conv(taps, d_model=at.arch.d_model, batch=at.batch, query_tokens=at.tokens)
                at.put(place, [("conv", conv)])
            if last and name == "ffn":
                cut = lower_cut(width=at.arch.d_model, rows=at.rows, kept=at.batch)
                at.put(place, [("last_stream", cut), ("last", cut)])
                at.tokens = 1
            at.put(place, _block(at, kind, (i, name), block, last=last))
            if last:
                at.tokens = kind.kept(at.arch)
            at.put(place, kind.gate(at))
            if behind:
                at.put(place, [("norm", lower_norm(at.arch, rows=at.rows, skip=True))])
            if at.arch.norm_place == "both":
                at.put(place, [("post_norm", lower_norm(at.arch, rows=at.rows, skip=False))])
            at.skip = not behind


def _block(at: Pass, kind: Operators, place: Place, block: Block, *, last: bool) -> Named:
    """The operators of a block, without its norm."""
    layer, name = place
    weights, d_model = at.layers[layer], at.arch.d_model
    if isinstance(block, FeedForward):
        return lower_ffn(block, d_model=d_model, weights=weights, rows=at.rows, joined="up" in at.fused)
    if isinstance(block, ConvModule):
        return lower_module(block, d_model=d_model, weights=weights, batch=at.batch, positions=at.tokens)
    if not isinstance(block, Attention):
        raise Unsupported(f"layer {layer}: a {type(block).__name__} block is not supported")
    if name == "cross":
        read = at.arch.image_tokens
        sizes = {"batch": at.batch, "query_tokens": at.tokens, "read_tokens": read}
        return lower_cross(block, d_model=d_model, weights=weights, **sizes)
    return kind.attend(at, layer, block, weights, last)
