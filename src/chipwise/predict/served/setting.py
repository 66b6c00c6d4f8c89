"""Inputs and outputs of lowering: setting (model, plan, formats, runtime), step, and operators with their places."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from chipwise.core.dtypes import Size, values_bytes
from chipwise.hardware.runtime import Runtime
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.trunk import NormKind
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.collective import Collective, CollectiveOp
from chipwise.model.ops.elementwise import Elementwise, Function
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.matmul import ConvOp, Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.op import Op
from chipwise.predict.served.formats import Formats
from chipwise.predict.served.plan import Plan, check_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The work of one pass in each attention replica: the number of sequences, and of positions in each sequence.

    Attributes:
        batch: Number of sequences.
        query_tokens: New positions per sequence.
        past_tokens: Cached positions per sequence.
        encoder_tokens: Positions of an encoder-decoder's input sequence.
        encode: Whether the pass also runs the encoder.
        every_logit: Whether logits are computed for all new positions (training) or only for each sequence's last
            (serving).
        towers: Work of each tower before the pass; empty for text-only requests.
    """

    batch: Size
    query_tokens: Size
    past_tokens: Size
    encoder_tokens: Size = 0
    encode: bool = False
    every_logit: bool = False
    towers: tuple[Step, ...] = ()

    @property
    def tokens(self) -> Size:
        """Number of new positions in all sequences."""
        return self.batch * self.query_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedOp:
    """An operator with its place in the model, the number of its runs in a pass, and its number of separate weights."""

    place: str
    op: Op
    count: int = 1
    owned: int = 1

    def inside(self, place: str, count: int = 1, owned: int | None = None) -> PlacedOp:
        """This operator inside ``place``, repeated in ``count`` layers, of which ``owned`` have separate weights."""
        own = self.owned * (count if owned is None else owned)
        return PlacedOp(place=f"{place}.{self.place}", op=self.op, count=self.count * count, owned=own)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The inputs of lowering other than the step. The methods create the operators of which blocks consist.

    Raises:
        SpecError: A parallel degree does not divide the model."""

    arch: ArchSpec
    plan: Plan
    formats: Formats
    runtime: Runtime

    def __post_init__(self) -> None:
        check_plan(self.arch, self.plan)

    def activation_bytes(self, values: Size) -> Size:
        """Bytes of ``values`` activations."""
        return values_bytes(values, self.formats.activations)

    def matmul(self, place: str, m: Size, k: Size, n: Size, *, bias: bool = False) -> PlacedOp:
        """A matrix product with weights in the model's format. If they are narrow, activations may be quantised too."""
        op = Matmul(m=m, k=k, n=n, weights=self.formats.weights, activations=self.formats.activations, bias=bias)
        return PlacedOp(place=place, op=op)

    def plain_matmul(self, place: str, m: Size, k: Size, n: Size, *, bias: bool = False) -> PlacedOp:
        """A matrix product whose weights are never quantised, such as a router's."""
        kept = self.formats.activations
        return PlacedOp(place=place, op=Matmul(m=m, k=k, n=n, weights=kept, activations=kept, bias=bias))

    def head_matmul(self, place: str, m: Size, k: Size, n: Size) -> PlacedOp:
        """The matrix product with the head, which gives the logits."""
        formats = self.formats
        return PlacedOp(place=place, op=Matmul(m=m, k=k, n=n, weights=formats.head, activations=formats.activations))

    @property
    def attention(self) -> Callable[..., AttentionOp]:
        """A function that creates attention from its sizes, fused as in the runtime, with the model's cache format."""
        kept, cache, fused = self.formats.activations, self.formats.cache, self.runtime.fuses("attention")
        return partial(AttentionOp, rope=False, fused=fused, activations=kept, cache=cache)

    @property
    def conv(self) -> Callable[..., ConvOp]:
        """A function that creates a convolution from its sizes; its weights are never quantised."""
        return partial(ConvOp, weights=self.formats.activations, activations=self.formats.activations)

    def elementwise(self, place: str, function: Function, elements: Size) -> PlacedOp:
        """An elementwise function of ``elements`` values."""
        op = Elementwise(function=function, elements=elements, activations=self.formats.activations)
        return PlacedOp(place=place, op=op)

    def norm(self, rows: Size) -> Iterator[PlacedOp]:
        """The operators of a residual addition and the norm after it."""
        arch, fused = self.arch, self.runtime.fuses("skip_norm")
        if not fused:
            yield self.elementwise("add", "add", rows * arch.d_model)
        op = NormOp(
            rows=rows,
            width=arch.d_model,
            norm=arch.norm,
            skip=fused,
            bias=arch.norm_bias,
            activations=self.formats.activations,
        )
        yield PlacedOp(place="norm", op=op)

    def norm_of(
        self, place: str, rows: Size, width: Size, norm: NormKind = "rmsnorm", *, bias: bool = False
    ) -> PlacedOp:
        """The operator of a norm over ``width`` values, without a residual addition."""
        op = NormOp(rows=rows, width=width, norm=norm, bias=bias, activations=self.formats.activations)
        return PlacedOp(place=place, op=op)

    def table(self, place: str, tokens: Size, width: Size, rows: Size, *, weights: str | None = None) -> PlacedOp:
        """Look-ups in a table of ``rows`` rows, in the format of the model's tables unless ``weights`` is given."""
        kept = weights or self.formats.table
        op = EmbeddingOp(tokens=tokens, width=width, rows=rows, weights=kept, activations=self.formats.activations)
        return PlacedOp(place=place, op=op)

    def collective(self, collective: Collective, values: Size, devices: int) -> Iterator[PlacedOp]:
        """A collective of ``values`` activations among ``devices`` devices; nothing for a single device."""
        if devices > 1:
            op = CollectiveOp(
                collective=collective,
                payload_bytes=self.activation_bytes(values),
                devices=devices,
                activations=self.formats.activations,
            )
            yield PlacedOp(place=collective, op=op)


def shard(size: Size, devices: int) -> Size:
    """One device's share of ``size`` items, at least one item."""
    return max(1, size // devices)
