"""Operators of ranking models: embedding bags, attention over a request, and row-wise dot products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from chipwise.core.dtypes import Size, values_bytes, weight_format
from chipwise.model.ops.attention import SOFTMAX_FLOPS
from chipwise.model.ops.op import triangle
from chipwise.model.ops.work import Work

POINTWISE_FLOPS = 7  # per score: scale, bias, and five for SiLU


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingBagOp:
    """Sums ``ids`` rows of ``width`` values for each of ``bags`` bags, from a table of ``rows`` rows."""

    kind: ClassVar[str] = "embedding_bag"
    bags: Size
    ids: Size
    width: Size
    rows: Size
    weights: str = "fp32"
    activations: str = "fp32"

    def work(self) -> Work:
        """FLOPs: one addition per gathered value. The gathered rows are read, the sums are written."""
        gathered = self.bags * self.ids
        return Work(
            flops=gathered * self.width,
            weight_bytes=weight_format(self.weights).matrix_bytes(gathered, self.width),
            write_bytes=values_bytes(self.bags * self.width, self.activations),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAttentionOp:
    """Attention over a request: each position attends to itself and to the ``history`` before it, with position biases.

    A candidate attends to the whole history and to no other candidate. If ``whole``, history positions are queries too;
    otherwise only candidates are queries, as in a model's last attention. ``pointwise`` applies SiLU to each score
    instead of a softmax. ``fused`` keeps scores on chip and skips masked pairs; otherwise scores go through memory, and
    masked scores are computed too.
    """

    kind: ClassVar[str] = "request_attention"
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
    def queries(self) -> Size:
        """Number of queries per request."""
        return self.candidates + (self.history if self.whole else 0)

    @property
    def positions(self) -> Size:
        """Sequence length of a request."""
        return self.history + self.candidates

    def pairs(self) -> Size:
        """Number of query-key pairs that are not masked, per head and request."""
        return self.candidates * (self.history + 1) + (triangle(self.history) if self.whole else 0)

    def work(self) -> Work:
        """FLOPs: two matrix products of 2·head_size per query-key pair, plus softmax or SiLU."""
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
    """The dot products of ``rows`` pairs of rows with ``width`` values."""

    kind: ClassVar[str] = "row_dot"
    rows: Size
    width: Size
    activations: str = "fp32"

    def work(self) -> Work:
        """FLOPs: two per pair of values."""
        values = self.rows * self.width
        return Work(
            flops=2 * values,
            read_bytes=values_bytes(2 * values, self.activations),
            write_bytes=values_bytes(self.rows, self.activations),
        )
