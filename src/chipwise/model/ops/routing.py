"""Mixture of experts: choosing experts for each token, and the experts that one device holds."""

from __future__ import annotations

from dataclasses import dataclass

from chipwise.core.dtypes import Size, values_bytes, weight_format
from chipwise.model.ops.matmul import product_format
from chipwise.model.ops.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteOp:
    """The ``topk`` of ``experts`` for each of ``tokens``, from FP32 scores of a separate matmul."""

    tokens: Size
    experts: Size
    topk: Size

    @property
    def kind(self) -> str:
        """``route``."""
        return "route"

    def work(self) -> Work:
        """Softmax (5 a score), a comparison a score and choice; a 32-bit weight and number leave for each choice."""
        scores = self.tokens * self.experts
        return Work(flops=scores * (5 + self.topk), read_bytes=4 * scores, write_bytes=8 * self.tokens * self.topk)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsOp:
    """The part of ``tokens`` that falls to the ``local_experts`` (of ``experts``) that a device holds, in one call.

    Each token goes to ``topk`` experts, uniformly and independently; counts are expectations. Two grouped products with
    the activation between, whose width goes through memory; choosing and summing up are operators of their own.
    Not ``grouped``, experts run one after another.
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
        """Expected rows over all local experts."""
        return self.tokens * self.topk * self.local_experts / self.experts

    def met(self) -> Size:
        """Expected number of local experts with at least one row."""
        missed = (1 - self.topk / self.experts) ** self.tokens
        return self.local_experts * (1 - missed)

    def work(self) -> Work:
        """6·rows·d_model·width FLOPs where gated, else 4; six or one of the activation; met experts are read."""
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
