"""An image classifier with its weights as one ONNX graph: images in, logits out. ``lowering_images.py`` mirrors it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
from onnx import TensorProto

from chipwise.blocks.attention.onnx import add_output
from chipwise.blocks.attention.onnx_encoder import add_heads
from chipwise.blocks.ffn.onnx import add_ffn
from chipwise.blocks.lowering_images import last_attention
from chipwise.blocks.norm.onnx import add_norm
from chipwise.blocks.onnx_graph import GraphBuilder
from chipwise.blocks.patches.onnx import add_classes, add_first, add_from_squares, add_into_squares, add_patches
from chipwise.blocks.projector.onnx import add_projector
from chipwise.spec import ArchSpec, Attention, Design, ImageStem
from chipwise.spec.question import Question
from chipwise.spec.vision import require_classifier


def classifier_graph(design: Design, weights: Mapping[str, npt.NDArray[Any]]) -> GraphBuilder:
    """The nodes of a classifier, its input ``image`` (B, C, Y, X) in FP32 and its output ``logits`` (B, classes).

    Raises:
        SpecError: A weight is missing or has the wrong shape.
        Unsupported: The weight format has no graph, or the model is not built.
    """
    arch = design.arch
    stem = require_classifier(arch, work="exported to ONNX")
    graph = GraphBuilder(weights=weights, format_of=design.format_of)
    x, positions = add_patches(graph, arch, stem), arch.max_tokens
    if arch.question is not None:
        x = _with_question(graph, arch, arch.question, stem, x)
    one, last = arch.pooling in ("first", "last"), arch.pooling == "last"
    cut = last_attention(arch) if one else None
    if one and cut is None:
        x, positions = add_first(graph, x, last=last), 1
    skip: str | None = None
    for i, layer in enumerate(arch.layers):
        if layer.attention is not None:
            place = f"layers.{i}.attention"
            normed, x = add_norm(graph, arch, f"{place}_norm", f"{place}_norm", x, skip)
            heads = add_attend(graph, layer.attention, stem, layer=i, x=normed, d_model=arch.d_model)
            if i == cut:
                x, heads, positions = add_first(graph, x, last=last), add_first(graph, heads, last=last), 1
            skip = add_output(graph, layer.attention, layer=i, key=place, x=heads, d_model=arch.d_model)
        if layer.ffn is not None:
            place = f"layers.{i}.ffn"
            normed, x = add_norm(graph, arch, f"{place}_norm", f"{place}_norm", x, skip)
            skip = add_ffn(graph, layer.ffn, layer=i, key=place, x=normed, d_model=arch.d_model)
    normed, _ = add_norm(graph, arch, "norm", "norm", x, skip)
    add_classes(graph, arch, normed, positions=positions)
    return graph


def add_attend(graph: GraphBuilder, block: Attention, stem: ImageStem, *, layer: int, x: str, d_model: int) -> str:
    """Scores and values of ``x`` over all positions, or within squares, before the output projection."""
    place, square = f"layers.{layer}.attention", block.square
    if square is None:
        return add_heads(graph, block, layer=layer, x=x, d_model=d_model, mask=None)
    sizes = {"grid": stem.grid, "square": square}
    x = add_into_squares(graph, x, place=f"{place}.squares", width=d_model, **sizes)
    heads = add_heads(graph, block, layer=layer, x=x, d_model=d_model, mask=None)
    return add_from_squares(graph, heads, place=f"{place}.rows", width=block.query_width, **sizes)


def _with_question(graph: GraphBuilder, arch: ArchSpec, question: Question, stem: ImageStem, x: str) -> str:
    """The image's tokens, then the rows of the input ``words`` (B, Q), with positions added to all."""
    d, tokens = arch.d_model, arch.image_tokens
    assert arch.projector is not None  # as ``require_classifier`` has checked
    x = add_projector(graph, arch.projector, stem, x, d_model=d)
    last = f"projector.matrices.{len(arch.projector.widths) - 1}.bias"
    given = graph.input("words", TensorProto.INT64, ["batch", question.tokens])
    rows = graph.store("words.weight", lambda: graph.weight("words.weight", (question.words, d)))
    words = graph.node("Gather", [rows, given], "question", axis=0)

    def table() -> npt.NDArray[Any]:
        found = graph.weight("positions.weight", (arch.max_tokens, d)).copy()
        found[:tokens] += graph.weight(last, (d,))
        return found

    both = graph.node("Concat", [x, words], "question.behind", axis=1)
    return graph.node("Add", [both, graph.store("positions.weight", table)], "question.out")


def classifier_metadata(arch: ArchSpec, stem: ImageStem) -> dict[str, Any]:
    """The metadata of a classifier's file beyond that of every file.

    The image that it takes, (C, Y, X) or (C, X), and, where it answers questions, the words of one.
    """
    asked = {} if arch.question is None else {"question": arch.question.tokens}
    return {"encodes": "classes", "image": list(stem.shape), "kv": [], **asked}
