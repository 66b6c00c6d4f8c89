"""Number formats: how many bits a value takes and how weights are stored with their scales."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from chipwise.core.errors import UnknownName


class DType(StrEnum):
    """The format in which a value is kept or multiplied."""

    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    FP4 = "fp4"
    INT8 = "int8"
    INT4 = "int4"

    @property
    def bits(self) -> int:
        """Bits that one value takes in memory (TF32 is stored as FP32)."""
        return _BITS[self]

    @property
    def size_bytes(self) -> float:
        """Bytes that one value takes in memory."""
        return self.bits / 8

    @classmethod
    def named(cls, name: str) -> DType:
        """The format called ``name``, with the usual other spellings (``bfloat16``, ``float32``, …)."""
        key = str(name).lower()
        key = _ALIASES.get(key, key)
        try:
            return cls(key)
        except ValueError:
            raise UnknownName("number format", name, [item.value for item in cls]) from None


_BITS = {
    DType.FP64: 64,
    DType.FP32: 32,
    DType.TF32: 32,
    DType.BF16: 16,
    DType.FP16: 16,
    DType.FP8: 8,
    DType.FP4: 4,
    DType.INT8: 8,
    DType.INT4: 4,
}
_ALIASES = {"float64": "fp64", "float32": "fp32", "float": "fp32", "f32": "fp32", "bfloat16": "bf16"}
_ALIASES |= {"float16": "fp16", "half": "fp16", "f16": "fp16", "float8": "fp8", "fp8_e4m3": "fp8", "nvfp4": "fp4"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """How a weight matrix is stored: values of ``dtype`` and one scale per block of ``block`` values along k.

    ``block`` None means one scale per output column. ``scale_bits`` is 0 for formats without scales.
    """

    name: str
    dtype: DType
    block: int | None = None
    scale_bits: int = 0

    def matrix_bytes(self, k: int, n: int) -> int:
        """Bytes of a k×n matrix in this format, scales included; blocks are stored whole."""
        blocks = 1 if self.block is None else -(-k // self.block)
        values = (k if self.block is None else blocks * self.block) * n * self.dtype.bits / 8
        scales = n * blocks * self.scale_bits / 8
        return round(values + scales)


FORMATS: dict[str, WeightFormat] = {
    "fp32": WeightFormat(name="fp32", dtype=DType.FP32),
    "bf16": WeightFormat(name="bf16", dtype=DType.BF16),
    "fp16": WeightFormat(name="fp16", dtype=DType.FP16),
    "int8": WeightFormat(name="int8", dtype=DType.INT8, scale_bits=32),
    "int4": WeightFormat(name="int4", dtype=DType.INT4, block=32, scale_bits=32),
}


def weight_format(name: str) -> WeightFormat:
    """The weight format called ``name``."""
    try:
        return FORMATS[name]
    except KeyError:
        raise UnknownName("weight format", name, FORMATS) from None
