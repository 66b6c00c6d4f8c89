"""Block formats of weights: bytes by hand, whole matrices and arrays of sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.core.dtypes import FORMATS, OF_WEIGHTS, DType, dtype_of, format_name, values_bytes, weight_format
from chipwise.errors import UnknownName

sizes = st.integers(1, 5000)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fp8", 256 * 192 + 4),  # one scale
        ("fp8_block", 256 * 192 + 2 * 2 * 4),  # 2 × 1.5 blocks of 128×128, the half one with a scale of its own
        ("nvfp4", 256 * 192 // 2 + 16 * 192 + 4),  # a byte for 16 values, a scale for all
        ("mxfp4", 256 * 192 // 2 + 8 * 192),
        ("q8_0", 8 * 34 * 192),  # GGUF: 34 bytes for 32 values
        ("q4_0", 8 * 18 * 192),
        ("int4_g32", 256 * 192 // 2 + 8 * 192 * 2),  # 16 bits for 32 values
        ("int4_g128", 256 * 192 // 2 + 2 * 192 * 5 // 2),  # 20 bits for 128 values
    ],
)
def test_a_matrix_of_256_by_192(name: str, expected: int) -> None:
    assert weight_format(name).matrix_bytes(256, 192) == expected


@pytest.mark.parametrize(
    ("name", "bits"),
    [("nvfp4", 4.5), ("mxfp4", 4.25), ("q8_0", 8.5), ("q4_0", 4.5), ("q6_k", 6.5625), ("mlx_4bit", 4.5), ("bf16", 16)],
)
def test_bits_per_weight_as_the_formats_are_known_for(name: str, bits: float) -> None:
    assert weight_format(name).bits_per_weight == bits


@pytest.mark.parametrize("name", FORMATS)
@given(pairs=st.lists(st.tuples(sizes, sizes), min_size=1, max_size=5))
def test_arrays_of_matrices_are_each_matrix_alone(name: str, pairs: list[tuple[int, int]]) -> None:
    stored = weight_format(name)
    k, n = (np.array(column) for column in zip(*pairs, strict=True))
    assert list(stored.matrix_bytes(k, n)) == [stored.matrix_bytes(*pair) for pair in pairs]


@pytest.mark.parametrize("name", FORMATS)
@given(k=sizes, n=sizes, more=sizes)
def test_a_larger_matrix_takes_no_less_and_all_take_their_values(name: str, k: int, n: int, more: int) -> None:
    stored = weight_format(name)
    whole = stored.matrix_bytes(k, n)
    assert whole * 8 >= k * n * stored.stored_bits
    assert stored.matrix_bytes(k + more, n) >= whole
    assert stored.matrix_bytes(k, n + 2 * more) > whole


def test_values_outside_of_matrices() -> None:
    """Activations in MXFP4: half a byte, and a byte for each 32, the last block's too."""
    assert values_bytes(33, "mxfp4") == 17 + 2
    assert values_bytes(3, "fp4") == 2
    assert values_bytes(5, "bf16") == 10
    assert (dtype_of("nvfp4"), dtype_of("q8_0"), dtype_of("float16")) == (DType.FP4, DType.INT8, DType.FP16)
    with pytest.raises(UnknownName, match="unknown number format 'fp9'"):
        values_bytes(1, "fp9")


@pytest.mark.parametrize("said", ["BF16", "bfloat16", " bf16 "])
def test_a_format_is_found_by_its_other_names(said: str) -> None:
    assert format_name(said) == "bf16"
    assert DType.named(said.strip()) is DType.BF16


def test_four_bit_floats_are_values_or_weights_with_scales() -> None:
    """An E2M1 value has no scale; NVIDIA's checkpoints of such values have one for each 16 of them."""
    assert DType.named("nvfp4") is DType.FP4
    assert format_name("fp4") == "nvfp4"


@pytest.mark.parametrize("name", sorted(set(OF_WEIGHTS.values())))
def test_other_names_lead_to_formats_that_there_are(name: str) -> None:
    assert name in FORMATS
