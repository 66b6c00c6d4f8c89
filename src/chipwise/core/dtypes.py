"""Number formats: bits per value, and how weights and their scales are stored."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from chipwise.errors import UnknownName

if TYPE_CHECKING:
    from chipwise.core.arrays import AnyArray


class DType(StrEnum):
    """A number format for storage or arithmetic."""

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
        """Number of bits per value in memory (TF32 is stored as FP32)."""
        return _BITS[self]

    @property
    def size_bytes(self) -> float:
        """Number of bytes per value in memory."""
        return self.bits / 8

    @classmethod
    def named(cls, name: str) -> DType:
        """The format called ``name``; other common spellings (``bfloat16``, ``float32``, …) are accepted."""
        key = str(name).lower()
        try:
            return cls(OF_VALUES.get(key, key))
        except ValueError:
            raise UnknownName("number format", name, [item.value for item in cls]) from None


_BITS = {each: int(re.sub(r"\D", "", each)) for each in DType}  # the number in its name
_SPELLINGS = {
    "float32": "fp32",
    "float": "fp32",
    "f32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "f16": "fp16",
    "float8": "fp8",
    "fp8_e4m3": "fp8",
}
OF_VALUES = {**_SPELLINGS, "float64": "fp64", "nvfp4": "fp4"}
"""Other names of value formats. Variants that differ only in their scales are mapped to the same format."""
OF_WEIGHTS = {
    **_SPELLINGS,
    "fp8_static": "fp8",
    "fp4": "nvfp4",
    "w4a16": "int4",
    "awq": "int4",
    "gptq": "int4",
}
"""Other names of weight formats, used by checkpoints and serving engines."""
_DIGITS = r"(\d+(?:\.\d+)?)"
_WRITTEN: tuple[tuple[str, str], ...] = (
    (r"q[28]_k_(?:s|m|l|p|xl)", "q{0}"),  # any letter after q2_k or q8_k: q2_k or q8_0
    (r"q([3456])_k_(?:l|p|xl|xxl)", "mix{0}"),
    (r"q6_k_[sm]", "mix6"),
    (r"q4_0_[48]_[48]", "q4_0"),  # repacked for Arm's instructions
    (r"mxfp4_moe", "mxfp4"),
    (r"q0f16", "fp16"),
    (r"q0f32", "fp32"),
    (rf"q{_DIGITS}f(?:16|32)(?:_\d)?", "bits{0}"),  # MLC's names
    (rf"(?:exl[23]|qtip)_{_DIGITS}_?bpw(?:_h\d)?", "bits{0}"),
    (rf"(?:mlx_?)?{_DIGITS}_?bits?", "mlx{0}"),
    (rf"(?:int)?{_DIGITS}(?:_?bit)?_palett?i[sz]ed.*", "int{0}"),
    (rf"(?:ov_|openvino_)?int{_DIGITS}(?:_.*)?", "int{0}"),
    (rf"(?:awq|gptq|autoround|hqq)_(?:int)?{_DIGITS}(?:bit)?(?:_.*)?", "int{0}"),
    (r"(?:awq|gptq|autoround|hqq|w4a16)(?:_.*)?", "int4"),
    (r"(?:8da4w|spinquant|qat_lora|w4a8|w4)(?:_.*)?", "int4"),
    (r"(?:w8a8|w8a16|w8|int8|i8)(?:_.*)?", "int8"),
    (r"fp8(?:_.*)?", "fp8"),
    (r"nvfp4(?:_.*)?", "nvfp4"),
)
"""Patterns of other spellings. Each has a template for the format that it means; ``_meant`` completes the template."""
_LETTER = {"2": "q2_k", "8": "q8_0"}
_MIX = {"3": "q3_k_l", "4": "q4_k_m", "5": "q5_k_m", "6": "q6_k"}
_NEAREST = ((2.8, "q2_k_block"), (3.3, "iq3_xxs"), (4.4, "int4_g128"), (5.6, "q5_k"), (7.0, "q6_k"), (8.0, "int8"))
_INTEGERS = ("2", "3", "4", "5", "6", "8")  # bits of stored integers


Size: TypeAlias = "int | float | AnyArray"  # a number, or an array of them; commands load this without numpy


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """How a weight matrix is stored: values of ``dtype``, and scales for blocks of values.

    A block is ``block`` values along k (None: all of k) in ``block_columns`` columns (None: all n columns). If both are
    None, the whole matrix has one scale. ``scale_bits`` is 0 for formats without scales.
    """

    name: str
    dtype: DType
    block: int | None = None
    block_columns: int | None = 1
    scale_bits: int = 0
    zero_bits: int = 0  # bits of each block's zero point
    matrix_scale_bits: int = 0  # bits of a scale for the whole matrix, in addition to block scales
    padded: bool = True  # whether an incomplete last block along k is stored in full
    value_bits: float | None = None  # bits per stored value, if different from ``dtype``
    head: str | None = None  # format of the head and the token table in files of this format, if it differs
    table: str | None = None

    @property
    def stored_bits(self) -> float:
        """Number of bits per value, without scales."""
        return self.dtype.bits if self.value_bits is None else self.value_bits

    def matrix_bytes(self, k: Size, n: Size) -> Size:
        """Size in bytes of a k×n matrix in this format, including its scales. ``k`` and ``n`` may be arrays."""
        along_k = 1 if self.block is None else -(-k // self.block)
        along_n = 1 if self.block_columns is None else -(-n // self.block_columns)
        stored_k = k if self.block is None or not self.padded else along_k * self.block
        scales = along_k * along_n * (self.scale_bits + self.zero_bits) + self.matrix_scale_bits
        return -(-(stored_k * n * self.stored_bits + scales) // 8)

    @property
    def bits_per_weight(self) -> float:
        """Number of bits per value of a large matrix, including scales."""
        if self.block is None or self.block_columns is None:
            return float(self.stored_bits)
        return self.stored_bits + (self.scale_bits + self.zero_bits) / (self.block * self.block_columns)


def _blocks(name: str, dtype: DType, bits: float, block: int = 256, table: str | None = None) -> WeightFormat:
    """A GGUF format with ``bits`` bits per value, including scales. Files of this format store the head in q6_k."""
    return WeightFormat(name=name, dtype=dtype, block=block, value_bits=bits, head="q6_k", table=table or name)


def _mlx(name: str, dtype: DType, bits: float | None = None) -> WeightFormat:
    """A format that MLX uses for layers, head and token table: each 64 values have an fp16 scale and an fp16 bias."""
    return WeightFormat(
        name=name, dtype=dtype, block=64, scale_bits=16, zero_bits=16, value_bits=bits, head=name, table=name
    )


FORMATS: dict[str, WeightFormat] = {
    stored.name: stored
    for stored in (
        WeightFormat(name="fp32", dtype=DType.FP32),
        WeightFormat(name="bf16", dtype=DType.BF16),
        WeightFormat(name="fp16", dtype=DType.FP16),
        WeightFormat(name="int8", dtype=DType.INT8, scale_bits=32),
        # Stored as int8; activations are quantised before the matrix product, which is computed in integers.
        WeightFormat(name="w8a8", dtype=DType.INT8, scale_bits=32),
        WeightFormat(name="int4", dtype=DType.INT4, block=32, scale_bits=32),
        # compressed-tensors' pack-quantized: groups of 32 along k, each with a 16-bit scale and no zero point.
        WeightFormat(name="int4_g32", dtype=DType.INT4, block=32, scale_bits=16),
        # AWQ and GPTQ checkpoints: groups of 128 along k, each with an fp16 scale and a 4-bit zero point.
        WeightFormat(name="int4_g128", dtype=DType.INT4, block=128, scale_bits=16, zero_bits=4),
        WeightFormat(name="fp8", dtype=DType.FP8, block_columns=None, scale_bits=32),
        # DeepSeek-V3 (arXiv:2412.19437, section 3.3): 128×128 blocks, each with an fp32 scale.
        WeightFormat(name="fp8_block", dtype=DType.FP8, block=128, block_columns=128, scale_bits=32, padded=False),
        # NVIDIA NVFP4: 16 E2M1 values share an E4M3 scale; the whole matrix has an fp32 scale.
        WeightFormat(name="nvfp4", dtype=DType.FP4, block=16, scale_bits=8, matrix_scale_bits=32),
        # OCP Microscaling Formats 1.0: 32 values share an E8M0 scale.
        WeightFormat(name="mxfp4", dtype=DType.FP4, block=32, scale_bits=8),
        # GGUF blocks as in ggml-common.h; dtype is the format of unpacked values. Blocks of 32 have an fp16 scale
        # (q4_1, q5_1: and an fp16 minimum); k-quants have blocks of 256 values with scales of scales.
        WeightFormat(name="q8_0", dtype=DType.INT8, block=32, scale_bits=16, head="q8_0", table="q8_0"),
        WeightFormat(name="q4_0", dtype=DType.INT4, block=32, scale_bits=16, head="q6_k", table="q4_0"),
        WeightFormat(name="q4_1", dtype=DType.INT4, block=32, scale_bits=16, zero_bits=16, head="q6_k", table="q4_1"),
        # The same blocks in chipwise's GGUF files, where head and token table have the other matrices' format.
        WeightFormat(name="q8_0_own", dtype=DType.INT8, block=32, scale_bits=16, head="q8_0", table="q8_0"),
        WeightFormat(name="q4_0_own", dtype=DType.INT4, block=32, scale_bits=16, head="q4_0_own", table="q4_0_own"),
        # The same blocks in chipwise's ONNX files.
        WeightFormat(name="int8_own", dtype=DType.INT8, scale_bits=32, head="int8_own", table="fp32"),
        WeightFormat(name="int4_own", dtype=DType.INT4, block=32, scale_bits=32, head="int4_own", table="fp32"),
        _blocks("q5_0", DType.INT8, 5.5, 32),
        _blocks("q5_1", DType.INT8, 6.0, 32),
        _blocks("q2_k_block", DType.INT4, 2.625),
        _blocks("q3_k", DType.INT4, 3.4375),
        _blocks("q4_k", DType.INT4, 4.5),
        _blocks("q5_k", DType.INT8, 5.5),
        _blocks("q6_k", DType.INT8, 6.5625),
        _blocks("iq4_nl", DType.INT4, 4.5, 32),
        _blocks("iq4_xs", DType.INT4, 4.25),
        _blocks("iq3_xxs", DType.INT4, 3.0625),
        _blocks("iq3_xs", DType.INT4, 3.3),
        _blocks("iq3_s", DType.INT4, 3.4375),
        _blocks("iq3_m", DType.INT4, 3.66),
        _blocks("iq2_xxs", DType.INT4, 2.0625),
        _blocks("iq2_xs", DType.INT4, 2.3125),
        _blocks("iq2_s", DType.INT4, 2.5),
        _blocks("iq2_m", DType.INT4, 2.7),
        _blocks("iq1_s", DType.INT4, 1.5625),
        _blocks("iq1_m", DType.INT4, 1.75),
        _blocks("tq1_0", DType.INT4, 1.6875),
        _blocks("tq2_0", DType.INT4, 2.0625),
        # Files of llama-quantize, which keeps value and down projections of some layers in wider formats. Average bits
        # of a layer's matrices by its rules (llama-quant.cpp) for Llama 3 8B's shapes; other shapes differ by 1 to 2
        # %.
        _blocks("q2_k", DType.INT4, 2.93, table="q2_k_block"),
        _blocks("q3_k_s", DType.INT4, 3.4375, table="q3_k"),
        _blocks("q3_k_m", DType.INT4, 3.84, table="q3_k"),
        _blocks("q3_k_l", DType.INT4, 4.19, table="q3_k"),
        _blocks("q4_k_s", DType.INT4, 4.54, table="q4_k"),
        _blocks("q4_k_m", DType.INT4, 4.80, table="q4_k"),
        _blocks("q5_k_s", DType.INT8, 5.5, table="q5_k"),
        _blocks("q5_k_m", DType.INT8, 5.66, table="q5_k"),
        _mlx("mlx_2bit", DType.INT4, 2),
        _mlx("mlx_3bit", DType.INT4, 3),
        _mlx("mlx_4bit", DType.INT4),
        _mlx("mlx_5bit", DType.INT8, 5),
        _mlx("mlx_6bit", DType.INT8, 6),
        _mlx("mlx_8bit", DType.INT8),
    )
}


@functools.lru_cache(maxsize=4096)
def format_name(text: str) -> str:
    """Canonical name of the weight format ``text``; case and common spellings are accepted.

    Mixed formats that are not in ``FORMATS`` are replaced by the nearest format: ``UD-Q4_K_XL`` by ``q4_k_m``, and
    ``EXL2 4.0 bpw`` by ``int4_g128``, which stores 4-bit values.
    """
    name = text.strip().lower()
    found = OF_WEIGHTS.get(name, name)
    if found in FORMATS or "/" in name or ":" in name:  # formats by layer
        return found
    plain = re.sub(r"[^a-z0-9.]+", "_", re.sub(r"^(?:ud|i1|gguf|mlc)[-_ ]", "", name)).strip("_")
    found = OF_WEIGHTS.get(plain, plain)
    if found in FORMATS:
        return found
    for pattern, meaning in _WRITTEN:
        written = re.fullmatch(pattern, plain)
        if written is not None:
            return _meant(meaning, plain, written[1] if written.groups() else "") or name
    return name


def _meant(meaning: str, plain: str, digits: str) -> str | None:
    """The weight format that a name stands for; None if chipwise has no such format.

    ``meaning`` is the template that ``_WRITTEN`` lists for the name, ``plain`` is the name in lower case with
    underscores, and ``digits`` is the number of bits in it (empty if the name states none).
    """
    size = re.search(r"(?:^|_)g(?:s|roup_?)?(32|64|128)(?:_|$)", plain)
    match meaning:
        case "q{0}":
            return _LETTER[plain[1]]
        case "mix{0}" | "mix6":
            return _MIX[digits or "6"]
        case "mlx{0}":
            return f"mlx_{digits}bit" if f"mlx_{digits}bit" in FORMATS else None
        case "int{0}" if digits not in _INTEGERS:
            return None
        case "bits{0}" | "int{0}" if digits not in ("4", "8"):
            return next((name for most, name in _NEAREST if float(digits) <= most), None)
        case "int4" | "bits{0}" | "int{0}" if digits in ("", "4"):
            return "int4_g32" if size is not None and size[1] == "32" else "int4_g128"
        case "bits{0}" | "int{0}":
            return "int8"
    return meaning


def weight_format(name: str) -> WeightFormat:
    """The weight format called ``name``."""
    try:
        return FORMATS[name]
    except KeyError:
        raise UnknownName("weight format", name, FORMATS) from None


def dtype_of(name: str) -> DType:
    """The number type that ``name`` denotes; if ``name`` is a weight format, the type of its values.

    Raises:
        UnknownName: ``name`` is neither a number type nor a weight format.
    """
    return FORMATS[name].dtype if name in FORMATS else DType.named(name)


def values_bytes(count: Size, name: str) -> Size:
    """Size in bytes of ``count`` values in the format ``name``, with one scale per block if the format has blocks."""
    bits = count * dtype_of(name).bits
    stored = FORMATS.get(name)
    if stored is not None and stored.block is not None:
        bits = bits + -(-count // stored.block) * (stored.scale_bits + stored.zero_bits)
    return -(-bits // 8)
