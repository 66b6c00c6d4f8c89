"""Quantisers: what they store stands for the matrix, and exports store what the chosen one gives."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from chipwise.core.arrays import Float32Array
from chipwise.errors import Unsupported
from chipwise.model.blocks.onnx_graph import GraphBuilder
from chipwise.model.blocks.quantize import MOST_INT8, QUANTISERS, Packed, nearest

MATRIX = np.random.default_rng(3).normal(size=(6, 80)).astype(np.float32)


@pytest.mark.parametrize("name", QUANTISERS)
@pytest.mark.parametrize(("form", "levels"), [("int8", MOST_INT8), ("int4", 7)])
def test_what_is_packed_stands_for_the_matrix(name: str, form: str, levels: int) -> None:
    """A value is off by at most half a step; a step is at most the largest magnitude over the levels."""
    packed = QUANTISERS[name](MATRIX, form, inputs=np.ones((4, 80), np.float32))
    restored = packed.restored()
    assert restored.shape == MATRIX.shape
    assert restored.dtype == np.float32
    assert np.abs(restored - MATRIX).max() <= np.abs(MATRIX).max() / levels * (0.5 if form == "int8" else 1.0)
    again = QUANTISERS[name](restored, form)
    assert np.allclose(again.restored(), restored, atol=1e-6) or form == "int4"


@pytest.mark.parametrize("name", QUANTISERS)
def test_a_format_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(Unsupported, match="'int3'; choose int8 or int4"):
        QUANTISERS[name](MATRIX, "int3")


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_a_graph_stores_what_its_quantiser_packs(form: str) -> None:
    def doubled(matrix: Float32Array, form: str, *, inputs: Float32Array | None = None) -> Packed:
        return nearest(2 * matrix, form, inputs=inputs)

    scales = []
    for quantiser in (nearest, doubled):
        graph = GraphBuilder(weights={"up.weight": MATRIX}, format_of=lambda _: form, quantiser=quantiser)
        graph.projection("y", "x", parts=["up"], key="up", k=80, widths=[6])
        scales.append(numpy_helper.to_array(graph.stored["up.scale"]))
    assert np.allclose(scales[1], 2 * scales[0])
