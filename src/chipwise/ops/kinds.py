"""The operators: sizes in, counted work out. Each is what one node of a runtime's graph computes.

Activations are FP32 unless ``activation_bytes`` says otherwise. Bytes are counted as if each distinct byte moved once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from chipwise.core.dtypes import WeightFormat, weight_format
from chipwise.ops.work import Work


class Op(Protocol):
    """One operator with its sizes."""

    @property
    def kind(self) -> str:
        """The operator's name in tables and reports."""
        ...

    def work(self) -> Work:
        """FLOPs and bytes of one call."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Matmul:
    """(m, k) activations times a (k, n) weight matrix in ``weights`` format, plus a bias if any."""

    m: int
    k: int
    n: int
    weights: str = "fp32"
    bias: bool = False
    activation_bytes: int = 4

    @property
    def kind(self) -> str:
        """``matmul``."""
        return "matmul"

    @property
    def format(self) -> WeightFormat:
        """How the weights are stored."""
        return weight_format(self.weights)

    def work(self) -> Work:
        """2mkn FLOPs; the weights once, the activations in and out."""
        bias = self.n if self.bias else 0
        return Work(
            flops=2 * self.m * self.k * self.n + self.m * bias,
            weight_bytes=self.format.matrix_bytes(self.k, self.n) + 4 * bias,
            read_bytes=self.m * self.k * self.activation_bytes,
            write_bytes=self.m * self.n * self.activation_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOp:
    """Scores, softmax and values of ``query_tokens`` new positions over themselves and ``past_tokens``, causal.

    Rotary positions are part of it when ``rope``; so is writing the new keys and values to the cache.
    """

    batch: int
    query_tokens: int
    past_tokens: int
    heads: int
    kv_heads: int
    head_size: int
    rope: bool = True
    window: int | None = None
    value_bytes: int = 4

    @property
    def kind(self) -> str:
        """``attention``."""
        return "attention"

    def pairs(self) -> int:
        """Query-key pairs that the causal mask (and window) leaves, per head and sequence."""
        if self.window is None:
            return self.query_tokens * self.past_tokens + self.query_tokens * (self.query_tokens + 1) // 2
        return sum(min(self.window, self.past_tokens + i + 1) for i in range(self.query_tokens))

    def work(self) -> Work:
        """Two products of 2·head_size FLOPs a pair, five of softmax a pair, three of rotation a value."""
        pairs = self.batch * self.heads * self.pairs()
        rotated = self.batch * self.query_tokens * (self.heads + self.kv_heads) * self.head_size
        kept = self.past_tokens if self.window is None else min(self.past_tokens, self.window)
        new = self.batch * self.query_tokens * self.head_size
        return Work(
            flops=pairs * (4 * self.head_size + 5) + (3 * rotated if self.rope else 0),
            read_bytes=(2 * self.batch * kept * self.kv_heads * self.head_size + new * (self.heads + 2 * self.kv_heads))
            * self.value_bytes,
            write_bytes=new * (self.heads + 2 * self.kv_heads) * self.value_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NormOp:
    """RMSNorm or LayerNorm over ``width``, on ``rows`` rows; ``skip`` adds to the residual stream first, fused."""

    rows: int
    width: int
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    skip: bool = False
    bias: bool = False

    @property
    def kind(self) -> str:
        """``norm``."""
        return "norm"

    def work(self) -> Work:
        """Four FLOPs a value for RMSNorm (square, sum, scale, weight), seven for LayerNorm, one for the residual."""
        values = self.rows * self.width
        per_value = (4 if self.norm == "rmsnorm" else 7) + (1 if self.skip else 0) + (1 if self.bias else 0)
        return Work(
            flops=values * per_value,
            weight_bytes=4 * self.width * (2 if self.bias else 1),
            read_bytes=4 * values * (2 if self.skip else 1),
            write_bytes=4 * values * (2 if self.skip else 1),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Elementwise:
    """``function`` applied to ``elements`` values of each of ``inputs`` tensors."""

    function: Literal["relu", "gelu", "gelu_tanh", "silu", "mul", "add"]
    elements: int
    inputs: int = 1

    @property
    def kind(self) -> str:
        """``elementwise``."""
        return "elementwise"

    def work(self) -> Work:
        """One FLOP a value for add, mul and ReLU; GELU counts eight and SiLU five (exp and divide as one each)."""
        per_value = {"relu": 1, "gelu": 8, "gelu_tanh": 9, "silu": 5, "mul": 1, "add": 1}[self.function]
        return Work(
            flops=per_value * self.elements, read_bytes=4 * self.elements * self.inputs, write_bytes=4 * self.elements
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOp:
    """``tokens`` rows of ``width`` gathered from a table kept in ``weights`` format."""

    tokens: int
    width: int
    rows: int
    weights: str = "fp32"

    @property
    def kind(self) -> str:
        """``embedding``."""
        return "embedding"

    def work(self) -> Work:
        """No arithmetic; the gathered rows are read and written."""
        return Work(
            flops=0,
            weight_bytes=weight_format(self.weights).matrix_bytes(self.tokens, self.width),
            write_bytes=4 * self.tokens * self.width,
        )
