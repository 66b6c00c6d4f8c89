"""A whole design as an OpGraph: the same nodes, in the same order, as the graph that ``deploy`` builds."""

from __future__ import annotations

from chipwise.blocks.attention.lower import lower as lower_attention
from chipwise.blocks.embedding.lower import lower_embedding, lower_head
from chipwise.blocks.ffn.lower import lower as lower_ffn
from chipwise.blocks.norm.lower import lower as lower_norm
from chipwise.ops import Op, OpGraph, Phase, Placed, Workload
from chipwise.spec import Attention, Design, FeedForward


def lower(design: Design, workload: Workload, phase: Phase) -> OpGraph:
    """The operators of one pass of ``design`` in ``phase``."""
    arch = design.arch
    query, past = workload.query_tokens(phase), workload.past_tokens(phase)
    rows = workload.batch * query
    placed = [Placed(place=f"embedding.{name}", op=op) for name, op in lower_embedding(arch, rows=rows)]
    skip = False
    for i, layer in enumerate(arch.layers):
        for kind, block in (("attention", layer.attention), ("ffn", layer.ffn)):
            if block is None:
                continue
            place = f"layers.{i}.{kind}"
            placed.append(Placed(place=f"{place}.norm", op=lower_norm(arch, rows=rows, skip=skip)))
            for name, op in block_ops(
                block,
                d_model=arch.d_model,
                weights=design.weights,
                batch=workload.batch,
                query_tokens=query,
                past_tokens=past,
            ):
                placed.append(Placed(place=f"{place}.{name}", op=op))
            skip = True
    placed.append(Placed(place="norm", op=lower_norm(arch, rows=rows, skip=skip)))
    placed.append(Placed(place="head", op=lower_head(arch, weights=design.weights, sequences=workload.batch)))
    return OpGraph(phase=phase, ops=tuple(placed))


def block_ops(
    block: Attention | FeedForward, *, d_model: int, weights: str, batch: int, query_tokens: int, past_tokens: int
) -> list[tuple[str, Op]]:
    """The operators of one block, without its norm."""
    if isinstance(block, Attention):
        return lower_attention(
            block,
            d_model=d_model,
            weights=weights,
            batch=batch,
            query_tokens=query_tokens,
            past_tokens=past_tokens,
        )
    return lower_ffn(block, d_model=d_model, weights=weights, rows=batch * query_tokens)
