"""ggml's formats: sizes by arithmetic, round trips against the gguf package, and refusals in one line."""

from __future__ import annotations

import numpy as np
import pytest

from chipwise.deploy.runtimes.ggml import TYPES, ggml, library_path
from chipwise.errors import InputError, Unsupported

needs_library = pytest.mark.skipif(library_path() is None, reason="needs xllamacpp or llama-cpp-python")


def test_bits_follow_from_blocks() -> None:
    # Q4_K: 256 values in 2 × 2 bytes of scales, 12 bytes of block scales and 128 bytes of nibbles
    assert TYPES["Q4_K"].block_bytes == 4 + 12 + 128
    assert TYPES["Q8_0"].bits == 8 * (2 + 32) / 32
    assert not TYPES["Q6_K"].fits(576)
    assert TYPES["Q4_0"].matrix_bytes(3, 64) == 3 * 2 * 18


@needs_library
@pytest.mark.parametrize("name", sorted(set(TYPES) - {"IQ2_S", "IQ3_S", "IQ3_XXS"}))
def test_restored_values_are_those_of_the_gguf_package(name: str) -> None:
    quants = pytest.importorskip("gguf.quants")
    gguf = pytest.importorskip("gguf")
    values = np.random.default_rng(0).standard_normal((4, 512)).astype(np.float32)
    packed = ggml().pack(values, TYPES[name], np.ones(512, np.float32))
    assert packed.nbytes == TYPES[name].matrix_bytes(4, 512)
    own = ggml().unpack(packed, TYPES[name], 512)
    np.testing.assert_array_equal(own, quants.dequantize(packed, gguf.GGMLQuantizationType[name]))
    assert np.mean((own - values) ** 2) < 0.1  # of a variance of 1


@needs_library
def test_a_matrix_that_cannot_be_stored_is_refused() -> None:
    with pytest.raises(Unsupported, match="blocks of 256"):
        ggml().pack(np.zeros((2, 576), np.float32), TYPES["Q4_K"])
    with pytest.raises(InputError, match="not finite"):
        ggml().pack(np.full((2, 32), np.nan, np.float32), TYPES["Q4_0"])
