"""Quantisers: stored values approximate the matrix, and exports store those of the chosen quantiser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from chipwise.core.arrays import Float32Array
from chipwise.deploy.export import gguf, onnx
from chipwise.deploy.export.onnx import random_weights
from chipwise.errors import InputError, Unsupported
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.design import Design
from chipwise.model.blocks.onnx_graph import GraphBuilder
from chipwise.model.blocks.quantisers import QUANTISERS, gptq, searched
from chipwise.model.blocks.quantize import (
    BLOCKS,
    GRID,
    MOST_INT8,
    NEAREST,
    Grid,
    Packed,
    Packing,
    nearest,
    no_inputs,
)
from chipwise.model.walk.module import matrix_inputs
from chipwise.training.loop.evaluate import rounded

MATRIX = np.random.default_rng(3).normal(size=(6, 80)).astype(np.float32)


GRIDS = [Grid(block=block, symmetric=symmetric) for block in BLOCKS for symmetric in (True, False)]


def mixed_inputs(rows: int = 600) -> Float32Array:
    """Inputs (rows, 80) that depend on each other: mixtures of 20 sources, and noise."""
    random = np.random.default_rng(5)
    mixed = random.normal(size=(rows, 20)) @ random.normal(size=(20, 80)) + 0.3 * random.normal(size=(rows, 80))
    return mixed.astype(np.float32)


def loss(packed: Packed, inputs: Float32Array) -> float:
    """Squared error of the outputs."""
    return float(np.square(inputs @ (packed.restored() - MATRIX).T).sum())


@pytest.mark.parametrize("name", QUANTISERS)
@pytest.mark.parametrize(("form", "levels"), [("int8", MOST_INT8), ("int4", 7), ("q8_0", 126)])
def test_what_is_packed_stands_for_the_matrix(name: str, form: str, levels: int) -> None:
    """Without calibration a value is off by at most half a step; a step is the largest magnitude over the levels."""
    packed = QUANTISERS[name](MATRIX, form, inputs=no_inputs, grid=GRID)
    restored = packed.restored()
    assert restored.shape == MATRIX.shape
    assert restored.dtype == np.float32
    assert np.abs(restored - MATRIX).max() <= np.abs(MATRIX).max() / levels * (1.0 if name == "nearest" else 1.7)
    again = QUANTISERS[name](restored, form, inputs=no_inputs, grid=GRID)
    assert np.allclose(again.restored(), restored, atol=1e-6 if form == "int8" else 1e-3) or form == "int4"


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", QUANTISERS)
def test_int4_packs_every_grid(name: str, grid: Grid) -> None:
    """A row of 80 takes ceil(80 / block) scales; 16 levels span a block, so half a step is a 30th of its range."""
    packed = QUANTISERS[name](MATRIX, "int4", inputs=no_inputs, grid=grid)
    blocks = -(-80 // grid.block)
    assert packed.scales.shape == (6, blocks)
    assert packed.values.shape == (6, blocks, grid.block // 2)
    assert (packed.zeros is None) == grid.symmetric
    error = float(np.square(packed.restored() - MATRIX).mean())
    assert error <= (2 * np.abs(MATRIX).max() / 15) ** 2 / 8


@pytest.mark.parametrize("name", QUANTISERS)
def test_scales_are_positive_where_a_runtime_needs_it(name: str) -> None:
    """Then a block whose largest value is positive has 7 steps, not 8: steps and errors are 8/7 as large."""
    inputs = mixed_inputs()
    free, positive = (
        QUANTISERS[name](MATRIX, "int4", inputs=lambda: inputs, grid=Grid(positive=only)) for only in (False, True)
    )
    assert (free.scales < 0).any()
    assert (positive.scales > 0).all()
    assert loss(positive, inputs) <= (8 / 7) ** 2 * loss(free, inputs)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("form", ["int8", "int4"])
def test_each_quantiser_loses_less_than_the_one_before(form: str, grid: Grid) -> None:
    """Scales of least error beat usual ones; outputs of integers chosen together, by GPTQ, lose less than half."""
    inputs = mixed_inputs()
    lost = [loss(each(MATRIX, form, inputs=lambda: inputs, grid=grid), inputs) for each in (nearest, searched, gptq)]
    assert lost[2] < lost[0] / 2
    assert lost[2] < lost[1] / 2


def test_independent_inputs_leave_gptq_nothing_to_pass_on() -> None:
    """With H = identity the loss is the squared error of the weights, which rounding to nearest minimises."""
    inputs = np.sqrt(np.float32(80)) * np.eye(80, dtype=np.float32)
    together, alone = (each(MATRIX, "int4", inputs=lambda: inputs, grid=GRID) for each in (gptq, searched))
    assert loss(together, inputs) <= loss(alone, inputs) * (1 + 1e-5)
    assert loss(together, inputs) >= loss(alone, inputs) * 0.98


def test_a_matrix_on_the_grid_is_kept() -> None:
    """Integers -8 … 7 times a scale for each block are what int4 stores: nothing is lost."""
    random = np.random.default_rng(7)
    integers = random.integers(-7, 8, size=(6, 3, 32))
    integers[..., 0] = -8
    matrix = (integers * random.uniform(0.5, 2, size=(6, 3, 1))).reshape(6, 96).astype(np.float32)
    inputs = random.normal(size=(400, 96)).astype(np.float32)
    for quantiser in QUANTISERS.values():
        assert np.allclose(quantiser(matrix, "int4", inputs=lambda: inputs, grid=GRID).restored(), matrix, atol=1e-5)


def test_inputs_that_are_always_zero_do_not_break_the_others() -> None:
    inputs = mixed_inputs()
    inputs[:, 10:20] = 0
    packed = gptq(MATRIX, "int4", inputs=lambda: inputs, grid=GRID)
    assert np.isfinite(packed.restored()).all()
    assert loss(packed, inputs) < loss(nearest(MATRIX, "int4"), inputs) / 2


def test_a_group_is_one_that_the_kernel_reads() -> None:
    with pytest.raises(InputError, match="groups of 16, 32, 64, 128, not 48"):
        Grid(block=48)


@pytest.mark.parametrize("name", QUANTISERS)
def test_a_format_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(Unsupported, match="'int3'; choose int8 or int4"):
        QUANTISERS[name](MATRIX, "int3", inputs=mixed_inputs, grid=GRID)


def test_fp8_is_torchs_e4m3() -> None:
    """All bytes but NaN mean the same, and values, largest 448, are rounded to the same bytes."""
    codes = torch.arange(256, dtype=torch.uint8)
    theirs = codes.view(torch.float8_e4m3fn).float().numpy()
    ours = Packed("fp8", codes.numpy()[None], np.ones(1, np.float32), 256).restored()[0]
    assert np.array_equal(np.delete(ours, [127, 255]), np.delete(theirs, [127, 255]))
    values = np.random.default_rng(1).normal(size=(4, 500)).astype(np.float32)
    values[:, 0] = 448
    packed = nearest(values, "fp8")
    assert np.array_equal(packed.scales, np.ones(4, np.float32))
    assert np.array_equal(packed.restored(), torch.from_numpy(values).to(torch.float8_e4m3fn).float().numpy())


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("k", [80, 128])
def test_onnx_runtime_multiplies_by_the_restored_matrix(grid: Grid, k: int) -> None:
    """Its kernel rounds activations to 8 bits: outputs agree within a hundredth of their size, with biases too."""
    random = np.random.default_rng(9)
    matrix, bias = random.normal(size=(6, k)).astype(np.float32), random.normal(size=6).astype(np.float32)
    graph = GraphBuilder(
        weights={"up.weight": matrix, "up.bias": bias},
        format_of=lambda _: "int4",
        packing=Packing(quantiser=searched, grid=grid),
    )
    x = graph.input("x", TensorProto.FLOAT, ["rows", k])
    graph.output(graph.projection("y", x, k=k, parts={"up": 6}, bias=True), ["rows", 6])
    built = helper.make_graph(graph.nodes, "one", graph.inputs, graph.outputs, list(graph.stored.values()))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(built, opset_imports=opsets, ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs = random.normal(size=(20, k)).astype(np.float32)
    wanted = inputs @ searched(matrix, "int4", grid=grid).restored().T + bias
    assert np.abs(session.run(None, {"x": inputs})[0] - wanted).max() <= 0.02 * np.abs(wanted).max()


def calibrated(matrix: Float32Array, form: str, *, inputs: Callable[[], Float32Array | None], grid: Grid) -> Packed:
    """A quantiser that sees what a matrix multiplies: here it is multiplied by the number of rows."""
    seen = inputs()
    return nearest(matrix if seen is None else len(seen) * matrix, form)


PACKING = Packing(quantiser=calibrated, inputs={"up.weight": np.ones((2, 80), np.float32)}.get)


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_a_graph_stores_what_its_quantiser_packs(form: str) -> None:
    scales = []
    for packing in (NEAREST, PACKING):
        graph = GraphBuilder(weights={"up.weight": MATRIX}, format_of=lambda _: form, packing=packing)
        graph.projection("y", "x", k=80, parts={"up": 6}, key="joined")
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

    def noted(matrix: Float32Array, form: str, *, inputs: Callable[[], Float32Array | None], grid: Grid) -> Packed:
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
