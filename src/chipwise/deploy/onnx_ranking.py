"""A ranking model with its weights as one ONNX graph: history and candidates in, scores out.

``lowering_ranking.py`` mirrors it. Every weight is read by one node, so that a format chosen for a matrix is its format
everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy.typing as npt

from chipwise.blocks.attention.onnx import add_output
from chipwise.blocks.candidates.onnx import add_candidates, add_items, add_request_attention, add_scores
from chipwise.blocks.ffn.onnx import add_ffn
from chipwise.blocks.norm.onnx import add_norm
from chipwise.blocks.onnx_graph import GraphBuilder
from chipwise.core.errors import SpecError, nearest
from chipwise.spec import Design, RankingStem
from chipwise.spec.ranking import last_attention, require_ranker


def ranker_graph(
    design: Design,
    weights: Mapping[str, npt.NDArray[Any]],
    *,
    formats: Mapping[str, str] | None = None,
    format_of: Callable[[str], str] | None = None,
) -> GraphBuilder:
    """The nodes of a ranking model, its inputs of items and its output ``scores`` (B, C).

    ``formats`` are those of single matrices, instead of the design's; ``format_of`` says the format of any.

    Raises:
        SpecError: A weight is missing or has the wrong shape.
        Unsupported: The weight format has no graph, or the model is not built.
    """
    arch = design.arch
    stem = require_ranker(arch, work="exported to ONNX")
    own = formats or {}
    asked = format_of or (lambda name: own.get(name) or design.format_of(name))
    graph = GraphBuilder(weights=weights, format_of=asked)
    first = x = add_items(graph, arch, stem)
    last, skip = last_attention(arch), None
    for i, layer in enumerate(arch.layers):
        if layer.attention is not None:
            place = f"layers.{i}.attention"
            normed, x = add_norm(graph, arch, f"{place}_norm", f"{place}_norm", x, skip)
            heads = add_request_attention(
                graph,
                layer.attention,
                stem,
                layer=i,
                x=normed,
                d_model=arch.d_model,
                eps=arch.norm_eps,
                last=i == last,
            )
            if i == last:
                x = add_candidates(graph, x, f"{place}.candidates", stem.history)
            skip = add_output(graph, layer.attention, layer=i, key=place, x=heads, d_model=arch.d_model)
        if layer.ffn is not None:
            place = f"layers.{i}.ffn"
            normed, x = add_norm(graph, arch, f"{place}_norm", f"{place}_norm", x, skip)
            skip = add_ffn(graph, layer.ffn, layer=i, key=place, x=normed, d_model=arch.d_model)
    normed, _ = add_norm(graph, arch, "norm", "norm", x, skip)
    add_scores(graph, arch, stem, x=normed, first=first)
    if unknown := sorted(set(own) - {f"{name}.weight" for name in graph.projected}):
        raise SpecError(f"there is no such matrix; {nearest(unknown[0], graph.projected)}", field=unknown[0])
    return graph


def ranker_metadata(stem: RankingStem) -> dict[str, Any]:
    """The metadata of a ranking model's file beyond that of every file: what a request holds."""
    request = {"history": stem.history, "candidates": stem.candidates, "items": stem.items}
    return {"encodes": "scores", "request": request | {"tags": stem.tags, "bag": stem.bag}, "kv": []}
