"""A whole design as an OpGraph: the same nodes, in the same order, as the graph that ``deploy`` builds.

Decoders are lowered here, other forms of models in files of their own (``lowering_images.py`` and so on).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.formats import matrix_of
from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.attention.lower import lower as lower_attention
from chipwise.model.blocks.conv.lower import lower as lower_conv
from chipwise.model.blocks.embedding.lower import lower_cut, lower_embedding, lower_head
from chipwise.model.blocks.ffn.lower import lower as lower_ffn
from chipwise.model.blocks.norm.lower import lower as lower_norm
from chipwise.model.kinds.denoiser.form import DENOISER
from chipwise.model.kinds.denoiser.lower import lower_denoiser
from chipwise.model.kinds.image.form import CLASSIFIER
from chipwise.model.kinds.image.lower import lower_classifier
from chipwise.model.kinds.image.lower_published import lower_image_encoder
from chipwise.model.kinds.image.published import IMAGE_ENCODER
from chipwise.model.kinds.ranking.form import RANKER
from chipwise.model.kinds.ranking.lower import lower_ranker
from chipwise.model.kinds.sound.form import TRANSCRIBER
from chipwise.model.kinds.sound.lower import lower_listener, lower_transcriber
from chipwise.model.kinds.sound.published import LISTENER
from chipwise.model.kinds.table import form_of
from chipwise.model.kinds.text.form import DECODER
from chipwise.model.ops.graph import OpGraph, Placed
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.op import Op
from chipwise.model.ops.workload import Phase, Workload

BlockKind = Literal["attention", "ffn"]
_ONE_PASS = {  # forms whose requests are answered in passes of one kind
    CLASSIFIER: lower_classifier,
    IMAGE_ENCODER: lower_image_encoder,
    DENOISER: lower_denoiser,
    TRANSCRIBER: lower_transcriber,
    LISTENER: lower_listener,
    RANKER: lower_ranker,
}


def last_mixing(arch: ArchSpec) -> tuple[int, BlockKind] | None:
    """The last block in which a position looks at others: an attention, or what has a convolution; None without one.

    After an attention's scores and values, or after the convolution of a feed-forward, no position looks at another,
    so only the last of each sequence is carried on.
    """
    found: tuple[int, BlockKind] | None = None
    for i, layer in enumerate(arch.layers):
        if layer.attention is not None:
            found = (i, "attention")
        if layer.ffn_conv:
            found = (i, "ffn")
    return found


def lower(design: Design, workload: Workload, phase: Phase, *, logits: Literal["last", "all"] = "last") -> OpGraph:
    """The operators of one pass of ``design`` in ``phase``. ``logits`` selects the positions of the output.

    Raises:
        Unsupported: A model that is not built, so that there is no graph to mirror.
    """
    graph = _lowered(design, workload, phase, logits)
    return _with_matrices(graph, design) if design.formats.matrices else graph


def _with_matrices(graph: OpGraph, design: Design) -> OpGraph:
    """``graph``, lowered with the formats of layers and head, with those of single matrices."""
    own, ops = dict(design.formats.matrices), []
    for item in graph.ops:
        weights = own.get(matrix_of(f"{item.place}.weight") or "")
        if weights is not None and isinstance(item.op, Matmul):
            ops.append(replace(item, op=replace(item.op, weights=weights)))
        else:
            ops.append(item)
    return replace(graph, ops=tuple(ops))


def _lowered(design: Design, workload: Workload, phase: Phase, logits: Literal["last", "all"]) -> OpGraph:
    arch = design.arch
    one_pass = _ONE_PASS.get(form_of(arch))
    if one_pass is not None:
        return one_pass(design, batch=workload.batch, phase=phase)
    DECODER.require(arch, work="lowered as the graph that is exported")
    query, past = workload.query_tokens(phase), workload.past_tokens(phase)
    batch = workload.batch
    rows = batch * query
    kept = rows if logits == "all" else batch  # rows after the cut
    cut_block = last_mixing(arch) if logits == "last" else None
    placed = [Placed(place=f"embedding.{name}", op=op) for name, op in lower_embedding(arch, rows=rows)]
    if logits == "last" and cut_block is None:
        placed.append(Placed(place="embedding.last", op=lower_cut(width=arch.d_model, rows=rows, kept=kept)))
        rows = kept
    skip = False
    for i, layer in enumerate(arch.layers):
        blocks: tuple[tuple[BlockKind, Attention | FeedForward | None, int], ...] = (
            ("attention", layer.attention, layer.attention_conv),
            ("ffn", layer.ffn, layer.ffn_conv),
        )
        for kind, block, taps in blocks:
            if block is None:
                continue
            place = f"layers.{i}.{kind}"
            placed.append(Placed(place=f"{place}.norm", op=lower_norm(arch, rows=rows, skip=skip)))
            if taps:
                conv = lower_conv(taps, d_model=arch.d_model, batch=batch, query_tokens=rows // batch)
                placed.append(Placed(place=f"{place}.conv", op=conv))
            cut = (i, kind) == cut_block
            if cut and kind == "ffn":
                op = lower_cut(width=arch.d_model, rows=rows, kept=kept)
                placed += [Placed(place=f"{place}.{name}", op=op) for name in ("last_stream", "last")]
                rows = kept
            for name, made in block_ops(
                block,
                d_model=arch.d_model,
                weights=design.formats.layers[i],
                batch=batch,
                query_tokens=rows // batch,
                past_tokens=past,
                cut=cut and kind == "attention",
            ):
                placed.append(Placed(place=f"{place}.{name}", op=made))
            if cut:
                rows = kept
            skip = True
    placed.append(Placed(place="norm", op=lower_norm(arch, rows=rows, skip=skip)))
    placed.append(Placed(place="head", op=lower_head(arch, weights=design.formats.head, rows=kept)))
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
