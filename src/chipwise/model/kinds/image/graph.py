"""An image classifier with its weights as one ONNX graph: images in, logits out. ``lowering_images.py`` mirrors it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy.typing as npt
from onnx import TensorProto

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.blocks.attention.onnx import add_output
from chipwise.model.blocks.cross.onnx import add_cross
from chipwise.model.blocks.ffn.onnx import add_ffn
from chipwise.model.blocks.norm.onnx import add_norm
from chipwise.model.blocks.onnx_graph import GraphBuilder, reshaped
from chipwise.model.kinds.image.form import CLASSIFIER
from chipwise.model.kinds.image.lower import last_attention
from chipwise.model.kinds.image.patches.onnx import add_classes, add_first, add_patches
from chipwise.model.kinds.image.pyramid import stage_archs
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.image.windows.onnx import add_attend
from chipwise.model.kinds.question.projector.onnx import add_projector
from chipwise.model.kinds.question.question import Question


def classifier_graph(design: Design, weights: Mapping[str, npt.NDArray[Any]]) -> GraphBuilder:
    """The nodes of a classifier, its input ``image`` (B, C, Y, X) in FP32 and its output ``logits`` (B, classes).

    Raises:
        SpecError: A weight is missing or has the wrong shape.
        Unsupported: The weight format has no graph, or the model is not built.
    """
    arch = design.arch
    CLASSIFIER.require(arch, work="exported to ONNX")
    stem: ImageStem = arch.stem
    graph = GraphBuilder(weights=weights, format_of=design.format_of)
    x, positions, read = add_patches(graph, arch, stem), arch.request_tokens, ""
    if arch.question is not None:
        x, read = _with_question(graph, arch, arch.question, stem, x)
    if stem.stages:
        x = _through_stages(graph, arch, stem, x)
    one, last = arch.pooling in ("first", "last"), arch.pooling == "last"
    cut = last_attention(arch)
    if one and cut is None:
        x, positions = add_first(graph, x, last=last), 1
    skip: str | None = None
    for i, layer in enumerate(arch.layers):
        if layer.attention is not None:
            place = f"layers.{i}.attention"
            normed, x = add_norm(graph, arch, f"{place}_norm", f"{place}_norm", x, skip)
            heads = add_attend(graph, layer.attention, stem, layer=i, x=normed, d_model=arch.d_model)
            if (i, "attention") == cut:
                x, heads, positions = add_first(graph, x, last=last), add_first(graph, heads, last=last), 1
            skip = add_output(graph, layer.attention, layer=i, key=place, x=heads, d_model=arch.d_model)
        if layer.cross is not None:
            place = f"layers.{i}.cross"
            normed, x = add_norm(graph, arch, f"{place}_norm", f"{place}_norm", x, skip)
            skip = add_cross(graph, layer.cross, layer=i, x=normed, read=read, d_model=arch.d_model)
        if layer.ffn is not None:
            place = f"layers.{i}.ffn"
            normed, x = add_norm(graph, arch, f"{place}_norm", f"{place}_norm", x, skip)
            skip = add_ffn(graph, layer.ffn, layer=i, key=place, x=normed, d_model=arch.d_model)
    normed, _ = add_norm(graph, arch, "norm", "norm", x, skip)
    add_classes(graph, arch, normed, positions=positions)
    return graph


def _through_stages(graph: GraphBuilder, arch: ArchSpec, stem: ImageStem, x: str) -> str:
    """The norm of the patches, and the stages before the model's own layers, each with its merge."""
    inner = stage_archs(arch, stem)
    x, _ = add_norm(graph, inner[0], "stem.norm", "stem.norm", x, None)
    for i, (stage, blocks) in enumerate(zip(inner, stem.stages, strict=True)):
        assert stage.stem is not None
        before, d, grid = f"stages.{i}.", stage.d_model, stage.stem.grid
        skip: str | None = None
        for j in range(blocks.depth):
            place = f"{before}layers.{j}.attention"
            own: dict[str, Any] = {"layer": j, "d_model": d, "before": before}
            normed, x = add_norm(graph, stage, f"{place}_norm", f"{place}_norm", x, skip)
            heads = add_attend(graph, blocks.attention, stage.stem, x=normed, **own)
            skip = add_output(graph, blocks.attention, key=place, x=heads, **own)
            place = f"{before}layers.{j}.ffn"
            normed, x = add_norm(graph, stage, f"{place}_norm", f"{place}_norm", x, skip)
            skip = add_ffn(graph, blocks.ffn, key=place, x=normed, **own)
        x = graph.node("Add", [x, *([skip] if skip else [])], f"{before}sum")
        parts = reshaped(graph, x, [-1, grid // 2, 2, grid // 2, 2, d], f"{before}cut")
        turned = graph.node("Transpose", [parts], f"{before}turned", perm=[0, 1, 3, 4, 2, 5])
        four = reshaped(graph, turned, [-1, grid**2 // 4, 4 * d], f"{before}four")
        wide = replace(stage, d_model=4 * d)
        normed, _ = add_norm(graph, wide, f"{before}norm", f"{before}norm", four, None)
        following = inner[i + 1].d_model if i + 1 < len(inner) else arch.d_model
        name = f"{before}merge"
        x = graph.projection(f"{name}.out", normed, parts=[name], key=name, k=4 * d, widths=[following])
    return x


def _with_question(graph: GraphBuilder, arch: ArchSpec, question: Question, stem: ImageStem, x: str) -> tuple[str, str]:
    """What passes the layers, and what these see by cross-attention, with positions added to all.

    The image's tokens, then the rows of the input ``words`` (B, Q); or the words alone, and the image's normed tokens.
    """
    d, tokens = arch.d_model, arch.image_tokens
    assert arch.projector is not None  # as ``CLASSIFIER.require`` has checked
    x = add_projector(graph, arch.projector, stem, x, d_model=d)
    last = f"projector.matrices.{len(arch.projector.widths) - 1}.bias"
    given = graph.input("words", TensorProto.INT64, ["batch", question.tokens])
    rows = graph.store("words.weight", lambda: graph.weight("words.weight", (question.words, d)))
    words = graph.node("Gather", [rows, given], "question", axis=0)

    def table() -> npt.NDArray[Any]:
        found = graph.weight("positions.weight", (arch.max_tokens, d)).copy()
        found[:tokens] += graph.weight(last, (d,))
        return found

    if arch.crosses:
        of_image = graph.store("positions.image", lambda: table()[:tokens])
        of_words = graph.store("positions.words", lambda: table()[tokens:])
        placed = graph.node("Add", [x, of_image], "question.image")
        read, _ = add_norm(graph, arch, "image_norm", "image_norm", placed, None)
        return graph.node("Add", [words, of_words], "question.out"), read
    both = graph.node("Concat", [x, words], "question.behind", axis=1)
    return graph.node("Add", [both, graph.store("positions.weight", table)], "question.out"), x


def classifier_metadata(arch: ArchSpec) -> dict[str, Any]:
    """The metadata of a classifier's file beyond that of every file.

    The image that it takes, (C, Y, X) or (C, X), and, where it answers questions, the words of one.
    """
    CLASSIFIER.require(arch, work="exported to ONNX")
    stem: ImageStem = arch.stem
    asked = {} if arch.question is None else {"question": arch.question.tokens}
    return {"encodes": "classes", "image": list(stem.shape), "kv": [], **asked}
