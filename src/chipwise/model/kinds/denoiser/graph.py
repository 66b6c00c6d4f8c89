"""Input and output of a denoiser as ONNX nodes: image, time and label in, velocity out.

A denoiser of latents is also exported as a single file. The decoder of latents runs only once per image, so it is a
separate ONNX model inside the file's metadata (entry ``decoder``, in base64).
"""

from __future__ import annotations

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.lowering import Place
from chipwise.model.blocks.nodes import Nodes, Stream, Weights
from chipwise.model.blocks.onnx_graph import GraphBuilder
from chipwise.model.kinds.denoiser.denoiser import UNSHIFTED
from chipwise.model.kinds.denoiser.latents.onnx import add_decoder
from chipwise.model.kinds.denoiser.modulation.onnx import add_modulated, add_pixels, add_told
from chipwise.model.kinds.denoiser.parts import parts_of
from chipwise.model.kinds.image.patches.onnx import add_patches


def _stem(s: Stream) -> None:
    stem, denoiser = parts_of(s.arch)
    s.parts = add_told(s.graph, s.arch, denoiser)
    s.x = add_patches(s.graph, s.arch, stem)


def _vectors(s: Stream, at: Place) -> list[str]:
    """Shift, scale and gate of a block."""
    layer, block = at
    told = s.parts[f"modulations.{layer}"]
    return told[:3] if block == "attention" else told[-3:]


def _norm(s: Stream, at: Place, place: str, key: str) -> str:
    shift, scale, _ = _vectors(s, at)
    normed, s.x = add_modulated(s.graph, s.arch, place, s.x, s.skip, shift=shift, scale=scale)
    return normed


def _head(s: Stream) -> None:
    stem, denoiser = parts_of(s.arch)
    shift, scale = s.parts["modulations.end"]
    normed, _ = add_modulated(s.graph, s.arch, "end", s.x, s.skip, shift=shift, scale=scale)
    add_pixels(s.graph, s.arch, stem, denoiser, normed)


def _after(arch: ArchSpec, weights: Weights) -> dict[str, GraphBuilder]:
    """The graph that decodes latents after the last step; empty for models in pixel space."""
    stem, denoiser = parts_of(arch)
    if denoiser.latents is None:
        return {}
    graph = GraphBuilder(weights=weights, format_of=lambda name: "fp32")
    add_decoder(graph, denoiser.latents, stem)
    return {"decoder": graph}


def _metadata(s: Stream) -> dict[str, object]:
    """The metadata entries: image size, labels, steps and inputs."""
    stem, denoiser = parts_of(s.arch)
    return {
        "encodes": "velocity",
        "image": list(stem.shape),
        "kv": [],
        "labels": denoiser.labels,
        "steps": denoiser.steps,
        "told": ["time"],
        **({"guidance": denoiser.guidance} if denoiser.guided else {}),
        **({"solver": denoiser.solver} if denoiser.solver != "euler" else {}),
        **({"shift": denoiser.shift} if denoiser.shift != UNSHIFTED else {}),
    }


NODES = Nodes(
    stem=_stem,
    head=_head,
    norm=_norm,
    gate=lambda s, at, y, place: s.graph.node("Mul", [y, _vectors(s, at)[2]], f"{place}.gated"),
    metadata=_metadata,
    logits="last",
    after=_after,
)
