"""Operators of a mixture of experts: routing tokens to experts, and computing the experts on one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from chipwise.core.dtypes import Size, values_bytes, weight_format
from chipwise.model.ops.matmul import product_format
from chipwise.model.ops.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteOp:
    """Chooses ``topk`` of ``experts`` experts for each of ``tokens`` tokens, from FP32 scores of a separate matmul."""

    kind: ClassVar[str] = "route"
    tokens: Size
    experts: Size
    topk: Size

    def work(self) -> Work:
        """FLOPs per score: 5 for the softmax, and ``topk`` for comparisons.

        For each chosen expert, a weight and an index are written, each of 32 bits.
        """
        scores = self.tokens * self.experts
        return Work(flops=scores * (5 + self.topk), read_bytes=4 * scores, write_bytes=8 * self.tokens * self.topk)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsOp:
    """The work of a mixture of experts on one device, which has ``local_experts`` of all ``experts`` experts.

    Each of ``tokens`` tokens is routed to ``topk`` experts, uniformly and independently. The device processes a token
    once for each of its own experts that the token is routed to; counts are expected values. An expert is two matrix
    products (three if ``gated``) with an activation between them. The activation's input and result go through memory.
    Routing and combining are separate operators. If not ``grouped``, experts run one after another.
    """

    tokens: Size
    d_model: Size
    width: Size
    experts: Size
    local_experts: Size
    topk: Size
    gated: bool = True
    weights: str = "fp32"
    activations: str = "fp32"
    bias: bool = False
    grouped: bool = True

    @property
    def kind(self) -> str:
        """``experts``, or ``looped_experts``."""
        return "experts" if self.grouped else "looped_experts"

    def rows(self) -> Size:
        """Expected number of rows that all local experts process together."""
        return self.tokens * self.topk * self.local_experts / self.experts

    def met(self) -> Size:
        """Expected number of local experts that get at least one row."""
        missed = (1 - self.topk / self.experts) ** self.tokens
        return self.local_experts * (1 - missed)

    def work(self) -> Work:
        """FLOPs: (6 if gated, else 4)·rows·d_model·width, plus biases and activation.

        Weights are read only for experts that get at least one row.
        """
        rows, inner = self.rows(), self.rows() * self.width
        matrices = 3 if self.gated else 2
        stored = weight_format(self.weights)
        expert = (matrices - 1) * stored.matrix_bytes(self.d_model, self.width)
        expert = expert + stored.matrix_bytes(self.width, self.d_model)
        leaves = product_format(self.activations)
        biases = (matrices - 1) * self.width + self.d_model if self.bias else 0
        expert = expert + values_bytes(biases, leaves)
        between = values_bytes(inner * (matrices - 1), leaves)
        return Work(
            flops=rows * (2 * matrices * self.d_model * self.width + biases) + inner * (6 if self.gated else 1),
            weight_bytes=self.met() * expert,
            read_bytes=values_bytes(rows * self.d_model, self.activations)
            + between
            + values_bytes(inner, self.activations),
            write_bytes=between + values_bytes(inner, self.activations) + values_bytes(rows * self.d_model, leaves),
        )
