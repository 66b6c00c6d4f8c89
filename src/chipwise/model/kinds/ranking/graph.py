"""A ranking model with its weights as one ONNX graph: history and candidates in, scores out.

``lowering_ranking.py`` mirrors it. Every weight is read by one node, so that a format chosen for a matrix is its format
everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.blocks.attention.onnx import add_output
from chipwise.model.blocks.ffn.onnx import add_ffn
from chipwise.model.blocks.norm.onnx import add_norm
from chipwise.model.blocks.onnx_graph import GraphBuilder
from chipwise.model.kinds.ranking.candidates.onnx import add_candidates, add_items, add_request_attention, add_scores
from chipwise.model.kinds.ranking.form import RANKER
from chipwise.model.kinds.ranking.lower import last_attention
from chipwise.model.kinds.ranking.stem import RankingStem


def ranker_graph(design: Design, weights: Mapping[str, npt.NDArray[Any]]) -> GraphBuilder:
    """The nodes of a ranking model, its inputs of items and its output ``scores`` (B, C).

    Raises:
        SpecError: A weight is missing or has the wrong shape.
        Unsupported: The weight format has no graph, or the model is not built.
    """
    arch = design.arch
    RANKER.require(arch, work="exported to ONNX")
    stem: RankingStem = arch.stem
    graph = GraphBuilder(weights=weights, format_of=design.format_of)
    first = x = add_items(graph, arch, stem, joined="tables" in design.fused)
    last, skip = last_attention(arch)[0], None
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
                joined="qkv" in design.fused,
            )
            if i == last:
                x = add_candidates(graph, x, f"{place}.candidates", stem.history)
            skip = add_output(graph, layer.attention, layer=i, key=place, x=heads, d_model=arch.d_model)
        if layer.ffn is not None:
            place = f"layers.{i}.ffn"
            normed, x = add_norm(graph, arch, f"{place}_norm", f"{place}_norm", x, skip)
            joined = "up" in design.fused
            skip = add_ffn(graph, layer.ffn, layer=i, key=place, x=normed, d_model=arch.d_model, joined=joined)
    normed, _ = add_norm(graph, arch, "norm", "norm", x, skip)
    add_scores(graph, arch, stem, x=normed, first=first)
    return graph


def ranker_metadata(arch: ArchSpec) -> dict[str, Any]:
    """The metadata of a ranking model's file beyond that of every file: what a request holds."""
    RANKER.require(arch, work="exported to ONNX")
    stem: RankingStem = arch.stem
    request = {"history": stem.history, "candidates": stem.candidates, "items": stem.items}
    return {"encodes": "scores", "request": request | {"tags": stem.tags, "bag": stem.bag}, "kv": []}
