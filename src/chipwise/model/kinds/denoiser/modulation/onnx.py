"""Modulation as ONNX nodes. The 1 in ``1 + scale`` is folded into the stored biases."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from chipwise.core.arrays import Float32Array
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.onnx_graph import MICROSOFT, GraphBuilder
from chipwise.model.kinds.denoiser.denoiser import BLOCK_PARTS, END_PARTS, Denoiser
from chipwise.model.kinds.denoiser.modulation.waves import wave_tables
from chipwise.model.kinds.denoiser.parts import modulation_widths
from chipwise.model.kinds.image.stem import ImageStem

Parts = dict[str, list[str]]  # by matrix: names of its vectors (B, 1, D): shift, scale, gate of each block


def add_told(graph: GraphBuilder, arch: ArchSpec, denoiser: Denoiser) -> Parts:
    """Adds the nodes that compute all shifts, scales and gates from the inputs ``label`` (B,) and ``time`` (B, 1)."""
    d = arch.d_model
    turns, phases = wave_tables(denoiser.frequencies)
    time = graph.input("time", TensorProto.FLOAT, ["batch", 1])
    x = graph.node("Mul", [time, _vector(graph, "turns", turns)], "told.time.scaled")
    x = graph.node("Add", [x, _vector(graph, "phases", phases)], "told.time.shifted")
    x = graph.node("Sin", [x], "told.time.waves")
    up, down = "told.time.up", "told.time.down"
    x = graph.projection(f"{up}.out", x, k=denoiser.frequencies, parts={up: d}, bias=True)
    x = graph.node("QuickGelu", [x], "told.time.activation", domain=MICROSOFT, alpha=1.0)
    x = graph.projection(f"{down}.out", x, k=d, parts={down: d}, bias=True)
    table = graph.tensor("labels.weight", denoiser.rows, d)
    label = graph.node("Gather", [table, graph.input("label", TensorProto.INT64, ["batch"])], "told.label", axis=0)
    total = graph.node("Add", [label, x], "told.with_time")
    total = graph.node("QuickGelu", [total], "told.activation", domain=MICROSOFT, alpha=1.0)
    return _parts(graph, arch, total)


def _parts(graph: GraphBuilder, arch: ArchSpec, told: str) -> Parts:
    """Adds one matrix product that computes all modulation vectors, and splits its result."""
    d, widths = arch.d_model, modulation_widths(arch)
    names = {key: [f"{key}.{i}" for i in range(width // d)] for key, width in widths.items()}
    graph.store("modulations.bias", lambda: np.concatenate([_bias(graph, key, w, d) for key, w in widths.items()]))
    x = graph.projection("modulations.all", told, k=d, parts=widths, key="modulations", bias=True)
    shape = graph.store("shape.apart", lambda: np.array([0, 1, -1], np.int64))
    x = graph.node("Reshape", [x, shape], "modulations.apart")
    every = [name for parts in names.values() for name in parts]
    each = graph.store("modulations.sizes", lambda: np.full(len(every), d, np.int64))
    graph.node("Split", [x, each], every, axis=-1)
    return names


def _bias(graph: GraphBuilder, key: str, width: int, d_model: int) -> Float32Array:
    """The bias of a modulation matrix, with 1 added to the entries for scales."""
    rows = graph.weight(f"{key}.bias", (width,)).reshape(-1, d_model).copy()
    rows[1 :: END_PARTS if key == "modulations.end" else BLOCK_PARTS] += 1.0
    return rows.ravel()


def add_modulated(
    graph: GraphBuilder, arch: ArchSpec, place: str, x: str, skip: str | None, *, shift: str, scale: str
) -> tuple[str, str]:
    """Adds ``skip`` (a block's gated output, if any) to ``x``, then norms and modulates; returns (modulated, sum)."""
    if skip is not None:
        x = graph.node("Add", [x, skip], f"{place}.sum")
    unit = graph.store("unit", lambda: np.ones(arch.d_model, np.float32))
    normed = graph.node("LayerNormalization", [x, unit], f"{place}.normed", axis=-1, epsilon=arch.norm_eps)
    scaled = graph.node("Mul", [normed, scale], f"{place}.scaled")
    return graph.node("Add", [scaled, shift], f"{place}.shifted"), x


def add_pixels(graph: GraphBuilder, arch: ArchSpec, stem: ImageStem, denoiser: Denoiser, x: str) -> None:
    """Adds the nodes from the last layer's states to the output ``velocity`` (B, C, Y, X)."""
    values, side = denoiser.values(stem), stem.image_size
    x = graph.projection("pixels", x, k=arch.d_model, parts={"head": values}, bias=True)
    cut = np.array([-1, stem.grid, stem.grid, stem.channels, stem.patch, stem.patch], np.int64)
    x = graph.node("Reshape", [x, graph.store("shape.patches", lambda: cut)], "patches.out")
    x = graph.node("Transpose", [x], "patches.turned", perm=[0, 3, 1, 4, 2, 5])
    whole = np.array([-1, stem.channels, side, side], np.int64)
    graph.node("Reshape", [x, graph.store("shape.image", lambda: whole)], "velocity")
    graph.output("velocity", ["batch", *stem.shape])


def _vector(graph: GraphBuilder, name: str, values: list[float]) -> str:
    return graph.store(f"told.{name}", lambda: np.array(values, np.float32))
