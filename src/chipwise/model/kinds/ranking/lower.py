"""A ranking model as an OpGraph: the same work, in the same order, as the graph of ``model/kinds/ranking/graph.py``."""

from __future__ import annotations

from chipwise.model.arch.design import Design
from chipwise.model.blocks.ffn.lower import lower as lower_ffn
from chipwise.model.blocks.norm.lower import lower as lower_norm
from chipwise.model.kinds.ranking.candidates.lower import lower_attention, lower_items, lower_scores
from chipwise.model.kinds.ranking.form import RANKER, last_attention
from chipwise.model.kinds.ranking.stem import RankingStem
from chipwise.model.ops.graph import OpGraph, Placed
from chipwise.model.ops.workload import Phase


def lower_ranker(design: Design, *, batch: int, phase: Phase = Phase.PREFILL) -> OpGraph:
    """The operators of a pass over ``batch`` requests, its only one, whatever it is called.

    The history is computed once for all candidates. In the last attention it only gives keys and values: after it the
    candidates alone are carried on.

    Raises:
        Unsupported: A model that is not built, so that there is no graph to mirror.
    """
    arch, formats = design.arch, design.formats
    RANKER.require(arch, work="lowered as the graph that is exported")
    stem: RankingStem = arch.stem
    tables, qkv, up = (name in design.fused for name in ("tables", "qkv", "up"))
    items = lower_items(arch, stem, weights=formats.head, batch=batch, joined=tables)
    placed = [Placed(place=f"stem.{name}", op=op) for name, op in items]
    last, rows, skip = last_attention(arch), batch * stem.tokens, False
    for i, (layer, weights) in enumerate(zip(arch.layers, formats.layers, strict=True)):
        if layer.attention is not None:
            place = f"layers.{i}.attention"
            placed.append(Placed(place=f"{place}.norm", op=lower_norm(arch, rows=rows, skip=skip)))
            ops = lower_attention(layer.attention, stem, arch.d_model, weights, batch=batch, last=i == last, joined=qkv)
            placed += [Placed(place=f"{place}.{name}", op=op) for name, op in ops]
            rows, skip = batch * stem.candidates if i == last else rows, True
        if layer.ffn is not None:
            place = f"layers.{i}.ffn"
            placed.append(Placed(place=f"{place}.norm", op=lower_norm(arch, rows=rows, skip=skip)))
            ops = lower_ffn(layer.ffn, d_model=arch.d_model, weights=weights, rows=rows, joined=up)
            placed += [Placed(place=f"{place}.{name}", op=op) for name, op in ops]
            skip = True
    placed.append(Placed(place="norm", op=lower_norm(arch, rows=rows, skip=skip)))
    ends = lower_scores(arch, stem, weights=formats.head, batch=batch)
    placed += [Placed(place=f"head.{name}", op=op) for name, op in ends]
    return OpGraph(phase=phase, ops=tuple(placed))
