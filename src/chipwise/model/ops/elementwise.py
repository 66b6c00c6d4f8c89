"""Element-wise functions: activations, gating, rotation, conversion between formats, copies into the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from chipwise.core.dtypes import Size, values_bytes
from chipwise.model.ops.work import Work

Function = Literal[
    "relu", "relu2", "gelu", "gelu_tanh", "silu", "sigmoid", "mul", "add", "silu_mul", "gelu_mul", "gelu_tanh_mul",
    "sigmoid_mul", "sin", "softmax", "rope", "kv_write", "copy", "split", "transpose", "pad", "quantise", "dequantise",
]  # fmt: skip

FLOPS: dict[str, tuple[int, int]] = {
    # (FLOPs per result, number of tensors read)
    "relu": (1, 1),
    "relu2": (2, 1),  # ReLU and a square
    "gelu": (8, 1),
    "gelu_tanh": (9, 1),
    "silu": (5, 1),
    "sigmoid": (4, 1),  # negate, exponential, sum, divide
    "mul": (1, 2),
    "add": (1, 2),
    "silu_mul": (6, 2),
    "gelu_mul": (9, 2),
    "gelu_tanh_mul": (10, 2),
    "sigmoid_mul": (5, 2),
    "sin": (1, 1),
    "softmax": (5, 1),  # scale, compare, subtract, exponential, sum
    "rope": (3, 1),  # two products and a sum; the table of angles stays on chip
    "kv_write": (0, 1),
    "copy": (0, 1),
    "split": (0, 1),
    "transpose": (0, 1),
    "pad": (0, 1),
    "quantise": (4, 1),  # absolute value, compare, divide, round
    "dequantise": (1, 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Elementwise:
    """``function`` applied element-wise, with ``elements`` results.

    ``inputs`` is the number of tensors that are read (None: one per argument of the function). ``output`` is the format
    of the results if it differs from ``activations``, as in quantising or in writing to a cache with fewer bits.
    """

    kind: ClassVar[str] = "elementwise"
    function: Function
    elements: Size
    inputs: int | None = None
    activations: str = "fp32"
    output: str | None = None

    def work(self) -> Work:
        """FLOPs per value from ``FLOPS`` (an exponential or a division counts as one)."""
        per_value, arguments = FLOPS[self.function]
        inputs = arguments if self.inputs is None else self.inputs
        return Work(
            flops=per_value * self.elements,
            read_bytes=values_bytes(self.elements * inputs, self.activations),
            write_bytes=values_bytes(self.elements, self.output or self.activations),
        )
