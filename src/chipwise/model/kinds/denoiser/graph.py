"""One pass of a denoiser with its weights as an ONNX graph: image, time and label in, velocity out.

A denoiser of latents is one file too: what decodes them runs once an image, so it is an ONNX model of its own, which
the file's metadata hold as ``decoder`` (in base64).

``lowering_denoisers.py`` mirrors it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.blocks.attention.onnx import add_output
from chipwise.model.blocks.ffn.onnx import add_ffn
from chipwise.model.blocks.onnx_graph import GraphBuilder
from chipwise.model.kinds.denoiser.denoiser import UNSHIFTED
from chipwise.model.kinds.denoiser.form import DENOISER
from chipwise.model.kinds.denoiser.latents.onnx import add_decoder
from chipwise.model.kinds.denoiser.modulation.onnx import add_modulated, add_pixels, add_told
from chipwise.model.kinds.denoiser.parts import parts_of
from chipwise.model.kinds.image.patches.onnx import add_patches
from chipwise.model.kinds.image.windows.onnx import add_attend


def denoiser_graph(design: Design, weights: Mapping[str, npt.NDArray[Any]]) -> GraphBuilder:
    """The nodes of a pass.

    Inputs are ``image`` (B, C, Y, X), ``time`` (B, 1) from 0 to 1, ``label`` (B,) and, of a model of shortcuts,
    ``step`` (B, 1); the output is ``velocity`` (B, C, Y, X).

    Raises:
        SpecError: A weight is missing or has the wrong shape.
        Unsupported: The weight format has no graph, or the model is not built.
    """
    arch = design.arch
    DENOISER.require(arch, work="exported to ONNX")
    stem, denoiser = parts_of(arch)
    graph = GraphBuilder(weights=weights, format_of=design.format_of)
    parts = add_told(graph, arch, denoiser)
    x = add_patches(graph, arch, stem)
    skip: str | None = None
    for i, layer in enumerate(arch.layers):
        told = parts.get(f"modulations.{i}", [])
        if layer.attention is not None:
            place, (shift, scale, gate) = f"layers.{i}.attention", told[:3]
            normed, x = add_modulated(graph, arch, place, x, skip, shift=shift, scale=scale)
            heads = add_attend(graph, layer.attention, stem, layer=i, x=normed, d_model=arch.d_model)
            out = add_output(graph, layer.attention, layer=i, key=place, x=heads, d_model=arch.d_model)
            skip = graph.node("Mul", [out, gate], f"{place}.gated")
        if layer.ffn is not None:
            place, (shift, scale, gate) = f"layers.{i}.ffn", told[-3:]
            normed, x = add_modulated(graph, arch, place, x, skip, shift=shift, scale=scale)
            out = add_ffn(graph, layer.ffn, layer=i, key=place, x=normed, d_model=arch.d_model)
            skip = graph.node("Mul", [out, gate], f"{place}.gated")
    shift, scale = parts["modulations.end"]
    normed, _ = add_modulated(graph, arch, "end", x, skip, shift=shift, scale=scale)
    add_pixels(graph, arch, stem, denoiser, normed)
    return graph


def decoder_graph(arch: ArchSpec, weights: Mapping[str, npt.NDArray[Any]]) -> GraphBuilder | None:
    """The nodes that make images of the latents after the last step; None of a model that draws pixels."""
    DENOISER.require(arch, work="exported to ONNX")
    stem, denoiser = parts_of(arch)
    if denoiser.latents is None:
        return None
    graph = GraphBuilder(weights=weights, format_of=lambda name: "fp32")
    add_decoder(graph, denoiser.latents, stem)
    return graph


def denoiser_metadata(arch: ArchSpec) -> dict[str, Any]:
    """The metadata of a denoiser's file beyond that of every file: image, labels, steps, and its inputs."""
    DENOISER.require(arch, work="exported to ONNX")
    stem, denoiser = parts_of(arch)
    return {
        "encodes": "velocity",
        "image": list(stem.shape),
        "kv": [],
        "labels": denoiser.labels,
        "steps": denoiser.steps,
        "told": list(denoiser.told),
        **({"guidance": denoiser.guidance} if denoiser.guided else {}),
        **({"solver": denoiser.solver} if denoiser.solver != "euler" else {}),
        **({"shift": denoiser.shift} if denoiser.shift != UNSHIFTED else {}),
    }
