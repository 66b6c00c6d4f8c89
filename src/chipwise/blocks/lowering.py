"""A whole design as an OpGraph: the same nodes, in the same order, as the graph that ``deploy`` builds."""

from __future__ import annotations

from typing import Literal

from chipwise.blocks.attention.lower import lower as lower_attention
from chipwise.blocks.embedding.lower import lower_cut, lower_embedding, lower_head
from chipwise.blocks.ffn.lower import lower as lower_ffn
from chipwise.blocks.norm.lower import lower as lower_norm
from chipwise.ops import Op, OpGraph, Phase, Placed, Workload
from chipwise.spec import ArchSpec, Attention, Design, FeedForward
from chipwise.spec.plain import require_plain


def last_attention(arch: ArchSpec) -> int | None:
    """Number of the last layer with attention; None if there is none.

    After its scores and values no position looks at another, so only the last of each sequence is carried on.
    """
    return max((i for i, layer in enumerate(arch.layers) if layer.attention is not None), default=None)


def lower(design: Design, workload: Workload, phase: Phase, *, logits: Literal["last", "all"] = "last") -> OpGraph:
    """The operators of one pass of ``design`` in ``phase``. ``logits`` says which positions leave the model.

    Raises:
        Unsupported: A model that is not built, so that there is no graph to mirror.
    """
    arch = design.arch
    require_plain(arch, work="lowered as the graph that is exported")
    query, past = workload.query_tokens(phase), workload.past_tokens(phase)
    batch = workload.batch
    rows = batch * query
    kept = rows if logits == "all" else batch  # rows after the cut
    cut_layer = last_attention(arch) if logits == "last" else None
    placed = [Placed(place=f"embedding.{name}", op=op) for name, op in lower_embedding(arch, rows=rows)]
    if logits == "last" and cut_layer is None:
        placed.append(Placed(place="embedding.last", op=lower_cut(width=arch.d_model, rows=rows, kept=kept)))
        rows = kept
    skip = False
    for i, layer in enumerate(arch.layers):
        for kind, block in (("attention", layer.attention), ("ffn", layer.ffn)):
            if block is None:
                continue
            place = f"layers.{i}.{kind}"
            placed.append(Placed(place=f"{place}.norm", op=lower_norm(arch, rows=rows, skip=skip)))
            cut = i == cut_layer and kind == "attention"
            for name, op in block_ops(
                block,
                d_model=arch.d_model,
                weights=design.weights,
                batch=batch,
                query_tokens=rows // batch,
                past_tokens=past,
                cut=cut,
            ):
                placed.append(Placed(place=f"{place}.{name}", op=op))
            if cut:
                rows = kept
            skip = True
    placed.append(Placed(place="norm", op=lower_norm(arch, rows=rows, skip=skip)))
    placed.append(Placed(place="head", op=lower_head(arch, weights=design.weights, rows=kept)))
    return OpGraph(phase=phase, ops=tuple(placed))


def block_ops(
    block: Attention | FeedForward,
    *,
    d_model: int,
    weights: str,
    batch: int,
    query_tokens: int,
    past_tokens: int,
    cut: bool = False,
) -> list[tuple[str, Op]]:
    """The operators of one block, without its norm.

    ``cut`` is for the model's last attention: what follows its scores and values is done for one position a sequence
    (the blocks after it are then lowered with ``query_tokens=1``).
    """
    if isinstance(block, Attention):
        return lower_attention(
            block,
            d_model=d_model,
            weights=weights,
            batch=batch,
            query_tokens=query_tokens,
            past_tokens=past_tokens,
            cut=cut,
        )
    return lower_ffn(block, d_model=d_model, weights=weights, rows=batch * query_tokens)
