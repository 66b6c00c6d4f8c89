"""Operators of ranking models: bags of embeddings, attention of a request's positions, a product of rows with rows."""

from __future__ import annotations

from dataclasses import dataclass

from chipwise.core.dtypes import Size, values_bytes, weight_format
from chipwise.model.ops.attention import SOFTMAX_FLOPS
from chipwise.model.ops.op import triangle
from chipwise.model.ops.work import Work

POINTWISE_FLOPS = 7  # a score: scale, bias, and the five of SiLU


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingBagOp:
    """``bags`` sums of ``ids`` rows each, of ``width`` values, from a table of ``rows`` kept in ``weights`` format."""

    bags: Size
    ids: Size
    width: Size
    rows: Size
    weights: str = "fp32"
    activations: str = "fp32"

    @property
    def kind(self) -> str:
        """``embedding_bag``."""
        return "embedding_bag"

    def work(self) -> Work:
        """An addition a value that is gathered; the gathered rows are read, the sums written."""
        gathered = self.bags * self.ids
        return Work(
            flops=gathered * self.width,
            weight_bytes=weight_format(self.weights).matrix_bytes(gathered, self.width),
            write_bytes=values_bytes(self.bags * self.width, self.activations),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAttentionOp:
    """Attention of a request's positions: each sees the ``history`` before it and itself, with a bias by distance.

    A candidate stands after the whole history and sees no other candidate. With ``whole`` the history's own positions
    ask too, else only candidates do (the last attention of a model). ``pointwise`` takes SiLU of each score where
    others take a softmax. ``fused`` keeps the scores on chip and leaves out those of hidden pairs; otherwise they go
    through memory, and hidden ones are computed too.
    """

    batch: Size
    history: Size
    candidates: Size
    heads: Size
    head_size: Size
    whole: bool = True
    pointwise: bool = False
    fused: bool = False
    activations: str = "fp32"

    @property
    def kind(self) -> str:
        """``request_attention``."""
        return "request_attention"

    @property
    def queries(self) -> Size:
        """Positions of a request that ask."""
        return self.candidates + (self.history if self.whole else 0)

    @property
    def positions(self) -> Size:
        """Positions of a request."""
        return self.history + self.candidates

    def pairs(self) -> Size:
        """Pairs of positions that see one another, per head and request."""
        return self.candidates * (self.history + 1) + (triangle(self.history) if self.whole else 0)

    def work(self) -> Work:
        """Two products of 2·head_size FLOPs a pair, plus softmax or SiLU."""
        width = self.heads * self.head_size
        each = 4 * self.head_size + (POINTWISE_FLOPS if self.pointwise else SOFTMAX_FLOPS)
        pairs: Size = self.batch * self.heads * self.pairs()
        scores: Size = 0
        if not self.fused:
            pairs = self.batch * self.heads * self.queries * (self.history + 1)
            scores = 2 * values_bytes(pairs, self.activations)
        values = self.batch * (self.queries + 2 * self.positions) * width
        return Work(
            flops=pairs * each,
            read_bytes=values_bytes(values, self.activations) + scores,
            write_bytes=values_bytes(self.batch * self.queries * width, self.activations) + scores,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDotOp:
    """The inner products of ``rows`` pairs of rows of ``width`` values."""

    rows: Size
    width: Size
    activations: str = "fp32"

    @property
    def kind(self) -> str:
        """``row_dot``."""
        return "row_dot"

    def work(self) -> Work:
        """Two FLOPs a value of the rows."""
        values = self.rows * self.width
        return Work(
            flops=2 * values,
            read_bytes=values_bytes(2 * values, self.activations),
            write_bytes=values_bytes(self.rows, self.activations),
        )
