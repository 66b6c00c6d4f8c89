"""Quantisers: what they store stands for the matrix, and exports store what the chosen one gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import numpy_helper

from chipwise.core.arrays import Float32Array
from chipwise.deploy.export import gguf, onnx
from chipwise.deploy.export.onnx import random_weights
from chipwise.errors import Unsupported
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.design import Design
from chipwise.model.blocks.onnx_graph import GraphBuilder
from chipwise.model.blocks.quantize import MOST_INT8, NEAREST, QUANTISERS, Packed, Packing, nearest, no_inputs
from chipwise.model.walk.module import matrix_inputs
from chipwise.training.loop.evaluate import rounded

MATRIX = np.random.default_rng(3).normal(size=(6, 80)).astype(np.float32)


@pytest.mark.parametrize("name", QUANTISERS)
@pytest.mark.parametrize(("form", "levels"), [("int8", MOST_INT8), ("int4", 7), ("q8_0", 126)])
def test_what_is_packed_stands_for_the_matrix(name: str, form: str, levels: int) -> None:
    """A value is off by at most half a step; a step is at most the largest magnitude over the levels."""
    packed = QUANTISERS[name](MATRIX, form, inputs=lambda: np.ones((4, 80), np.float32))
    restored = packed.restored()
    assert restored.shape == MATRIX.shape
    assert restored.dtype == np.float32
    assert np.abs(restored - MATRIX).max() <= np.abs(MATRIX).max() / levels * (1.0 if form == "int4" else 0.5)
    again = QUANTISERS[name](restored, form, inputs=no_inputs)
    assert np.allclose(again.restored(), restored, atol=1e-6 if form == "int8" else 1e-3) or form == "int4"


@pytest.mark.parametrize("name", QUANTISERS)
def test_a_format_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(Unsupported, match="'int3'; choose int8 or int4"):
        QUANTISERS[name](MATRIX, "int3", inputs=no_inputs)


def calibrated(matrix: Float32Array, form: str, *, inputs: Callable[[], Float32Array | None]) -> Packed:
    """A quantiser that sees what a matrix multiplies: here it is multiplied by the number of rows."""
    seen = inputs()
    return nearest(matrix if seen is None else len(seen) * matrix, form)


PACKING = Packing(quantiser=calibrated, inputs={"up.weight": np.ones((2, 80), np.float32)}.get)


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_a_graph_stores_what_its_quantiser_packs(form: str) -> None:
    scales = []
    for packing in (NEAREST, PACKING):
        graph = GraphBuilder(weights={"up.weight": MATRIX}, format_of=lambda _: form, packing=packing)
        graph.projection("y", "x", parts=["up"], key="joined", k=80, widths=[6])
        scales.append(numpy_helper.to_array(graph.stored["joined.scale"]))
    assert np.allclose(scales[1], 2 * scales[0])


def test_a_model_is_rounded_by_the_same_quantiser() -> None:
    found = rounded(torch.from_numpy(MATRIX), "int4", PACKING, "up.weight")
    assert torch.allclose(found, 2 * rounded(torch.from_numpy(MATRIX), "int4"))


@pytest.mark.parametrize("writer", ["onnx", "gguf"])
def test_a_quantiser_sees_what_each_matrix_multiplies_on_calibration_batches(writer: str, tmp_path: Path) -> None:
    """The first layer's matrices multiply normed rows of the token table: as many as tokens were run, 64 wide."""
    arch = uniform(vocab_size=96, d_model=64, depth=1, heads=2, ffn_width=64, max_tokens=16)
    weights, seen = random_weights(arch, seed=0), []

    def noted(matrix: Float32Array, form: str, *, inputs: Callable[[], Float32Array | None]) -> Packed:
        seen.append(inputs())
        return nearest(matrix, form)

    tokens, runs = torch.arange(5)[None], []
    packing = Packing(quantiser=noted, inputs=matrix_inputs(arch, weights, lambda model: runs.append(model(tokens))))
    export = {"onnx": onnx.export, "gguf": gguf.export}[writer]
    export(Design(arch=arch, weights="int8"), weights, tmp_path / "model", packing=packing)
    table = weights["embedding.weight"][:5]
    normed = table / np.sqrt((table**2).mean(axis=1, keepdims=True) + arch.norm_eps)
    assert any(rows is not None and np.allclose(rows, normed, atol=1e-5) for rows in seen)
    assert {rows.shape for rows in seen if rows is not None} == {(5, 64)}
    assert len(runs) == 1
