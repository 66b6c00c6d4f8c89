"""Products of activations with weights: one matrix, one matrix per group of rows, or a convolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from chipwise.core.dtypes import DType, Size, WeightFormat, dtype_of, values_bytes, weight_format
from chipwise.model.ops.op import lesser
from chipwise.model.ops.work import Work


def product_format(activations: str) -> str:
    """Output format of a matrix product: the format of the activations if it has at least 16 bits, else BF16."""
    return activations if dtype_of(activations).bits >= 16 else DType.BF16.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Matmul:
    """(m, k) activations times a (k, n) weight matrix in ``weights`` format, optionally plus a bias."""

    kind: ClassVar[str] = "matmul"
    m: Size
    k: Size
    n: Size
    weights: str = "fp32"
    activations: str = "fp32"
    bias: bool = False

    @property
    def format(self) -> WeightFormat:
        """Storage format of the weights."""
        return weight_format(self.weights)

    def work(self) -> Work:
        """FLOPs: 2mkn, and mn more if there is a bias. Weights and inputs are read once; results are written once."""
        outputs, leaves = self.m * self.n, product_format(self.activations)
        bias = values_bytes(self.n, leaves) if self.bias else 0
        return Work(
            flops=2 * outputs * self.k + (outputs if self.bias else 0),
            weight_bytes=self.format.matrix_bytes(self.k, self.n) + bias,
            read_bytes=values_bytes(self.m * self.k, self.activations),
            write_bytes=values_bytes(outputs, leaves),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedMatmul:
    """``tokens`` rows routed to ``groups`` weight matrices of (k, n) in one kernel; each row uses one matrix."""

    kind: ClassVar[str] = "grouped_matmul"
    tokens: Size
    groups: Size
    k: Size
    n: Size
    weights: str = "fp32"
    activations: str = "fp32"

    def work(self) -> Work:
        """FLOPs: 2·tokens·k·n. Each matrix that gets a row is read once: at most min(groups, tokens) matrices."""
        met = lesser(self.tokens, self.groups)
        return Work(
            flops=2 * self.tokens * self.k * self.n,
            weight_bytes=met * weight_format(self.weights).matrix_bytes(self.k, self.n),
            read_bytes=values_bytes(self.tokens * self.k, self.activations),
            write_bytes=values_bytes(self.tokens * self.n, product_format(self.activations)),
        )


DENSE_CONV = 64
"""Convolutions with at least this many inputs per output are computed as a matrix product (implicit GEMM)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvOp:
    """A convolution: each of ``positions`` outputs reads ``taps`` inputs in each channel of its group.

    ``taps`` is the filter's size over all axes; ``groups == in_channels == out_channels`` is depthwise, as in the short
    causal convolutions of Mamba and gated delta layers. If ``input_positions`` is None, there are as many inputs as
    outputs.
    """

    kind: ClassVar[str] = "conv"
    batch: Size
    positions: Size
    in_channels: Size
    out_channels: Size
    taps: Size
    groups: Size = 1
    input_positions: Size | None = None
    weights: str = "fp32"
    activations: str = "fp32"
    bias: bool = False
    centred: bool = False  # reads as many positions after as before; causal convolutions have a different kernel

    def work(self) -> Work:
        """FLOPs per output: two per tap and channel of the group, and one for the bias."""
        fan_in = self.taps * (self.in_channels // self.groups)
        outputs = self.batch * self.positions * self.out_channels
        inputs = self.positions if self.input_positions is None else self.input_positions
        bias = values_bytes(self.out_channels, self.activations) if self.bias else 0
        return Work(
            flops=outputs * (2 * fan_in + (1 if self.bias else 0)),
            weight_bytes=weight_format(self.weights).matrix_bytes(fan_in, self.out_channels) + bias,
            read_bytes=values_bytes(self.batch * inputs * self.in_channels, self.activations),
            write_bytes=values_bytes(outputs, product_format(self.activations)),
        )
