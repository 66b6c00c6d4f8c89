"""Two operators: one looks up rows of a table, the other chooses the next token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from chipwise.core.dtypes import Size, values_bytes, weight_format
from chipwise.model.ops.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOp:
    """Gathers ``tokens`` rows of ``width`` values from a table of ``rows`` rows stored in ``weights`` format."""

    kind: ClassVar[str] = "embedding"
    tokens: Size
    width: Size
    rows: Size
    weights: str = "fp32"
    activations: str = "fp32"

    def work(self) -> Work:
        """Counts no FLOPs; the gathered rows are read and written."""
        return Work(
            flops=0,
            weight_bytes=weight_format(self.weights).matrix_bytes(self.tokens, self.width),
            write_bytes=values_bytes(self.tokens * self.width, self.activations),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOp:
    """Chooses the next token of ``rows`` sequences from their logits: the argmax, or a sample from the softmax."""

    kind: ClassVar[str] = "sample"
    rows: Size
    vocabulary: Size
    greedy: bool = False
    activations: str = "fp32"

    def work(self) -> Work:
        """FLOPs per logit: 1 to compare; sampling adds 5 for softmax and 1 for a running sum. Writes 32-bit tokens."""
        logits = self.rows * self.vocabulary
        return Work(
            flops=logits * (1 if self.greedy else 6),
            read_bytes=values_bytes(logits, self.activations),
            write_bytes=4 * self.rows,
        )
