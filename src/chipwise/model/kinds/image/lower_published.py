"""A published encoder of images as an OpGraph: the nodes of ``model/kinds/image/graph_published.py``, in the same
order."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.blocks.embedding.lower import lower_cut
from chipwise.model.blocks.ffn.lower import lower as lower_ffn
from chipwise.model.blocks.layers import LayerOps, lower_layers
from chipwise.model.blocks.norm.lower import lower as lower_norm
from chipwise.model.kinds.image.patches.lower import lower_classes, lower_patches
from chipwise.model.kinds.image.published import IMAGE_ENCODER, as_run, gives
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.image.windows.lower import attention_ops
from chipwise.model.kinds.question.projector.lower import lower_projector
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.graph import OpGraph, Placed
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.op import Op
from chipwise.model.ops.pool import PoolOp
from chipwise.model.ops.workload import Phase


def lower_image_encoder(design: Design, *, batch: int, phase: Phase = Phase.PREFILL) -> OpGraph:
    """The operators of a pass over ``batch`` images, its only one, whatever it is called.

    Raises:
        Unsupported: A model that is not built, so that there is no graph to mirror.
    """
    IMAGE_ENCODER.require(design.arch, work="lowered as the graph that is exported")
    stem: ImageStem = design.arch.stem
    arch, formats = as_run(design.arch), design.formats
    d, rows = arch.d_model, batch * stem.tokens
    placed = [
        Placed(place=f"stem.{name}", op=op) for name, op in lower_patches(arch, stem, weights=formats.head, batch=batch)
    ]
    if arch.embedding_norm:
        placed.append(Placed(place="embedding_norm", op=lower_norm(arch, rows=rows, skip=False)))
    layers = []
    for i, (layer, weights) in enumerate(zip(arch.layers, formats.layers, strict=False)):  # the last may not be run
        blocks: LayerOps = []
        if layer.attention is not None:
            blocks.append(("attention", attention_ops(layer.attention, stem, d, weights, batch=batch, layer=i)))
        if layer.ffn is not None:
            blocks.append(("ffn", lower_ffn(layer.ffn, d_model=d, weights=weights, rows=rows)))
        layers.append(blocks)
    inner, skip = lower_layers(arch, layers, rows=rows)
    placed += inner
    placed += [Placed(place=name, op=op) for name, op in _ends(arch, stem, batch=batch, skip=skip, head=formats.head)]
    return OpGraph(phase=phase, ops=tuple(placed))


def _ends(arch: ArchSpec, stem: ImageStem, *, batch: int, skip: bool, head: str) -> Iterator[tuple[str, Op]]:
    """What follows the layers: the last sum and norm, and what makes one vector or tokens of the states."""
    d, rows = arch.d_model, batch * stem.tokens
    add = Elementwise(function="add", elements=rows * d, inputs=2)
    if gives(arch) == "vector" and arch.pooling == "first":
        if skip:
            yield "stream", add
        yield "first", lower_cut(width=d, rows=rows, kept=batch)
        rows, skip = batch, False
    if gives(arch) == "logits":
        if skip:
            yield "stream", add
        yield "patches", Elementwise(function="split", elements=batch * stem.patches * d)
        yield "mean", PoolOp(batch=batch, positions=stem.patches, width=d)
        rows, skip = batch, False
    if arch.final_norm:
        yield "norm", lower_norm(arch, rows=rows, skip=skip)
    elif skip:
        yield "stream", add
    if (projector := arch.projector) is not None:
        if stem.prefix_tokens:
            yield "patches", Elementwise(function="split", elements=batch * stem.patches * d)
        for name, op in lower_projector(projector, stem, d_model=d, weights=head, batch=batch):
            yield f"projector.{name}", op
        if projector.bias:
            tokens = batch * projector.tokens_of(stem.grid, stem.axes)
            yield "projector.out", Elementwise(function="add", elements=tokens * projector.widths[-1], inputs=2)
    elif arch.pooling == "attention":
        yield from _pooled(arch, positions=stem.tokens, batch=batch)
    if arch.head == "pooler":
        yield "pooler", Matmul(m=batch, k=d, n=d, weights=head, bias=True)
        yield "pooler.tanh", Elementwise(function="gelu", elements=batch * d)
    if arch.head == "classes":
        yield from ((f"head.{name}", op) for name, op in lower_classes(arch, weights=head, batch=batch, positions=1))
    if arch.projection:
        yield "projection", Matmul(m=batch, k=d, n=arch.projection, weights="fp32")


def _pooled(arch: ArchSpec, *, positions: int, batch: int) -> Iterator[tuple[str, Op]]:
    """One learned query over all ``positions``, a norm, and a feed-forward; its matrices stay in FP32."""
    d, last, rows = arch.d_model, arch.layers[-1], batch * positions
    assert last.attention is not None  # as ``IMAGE_ENCODER.require`` has checked, and of the feed-forward
    assert last.ffn is not None
    yield "pool.queries", Elementwise(function="pad", elements=batch * d)
    yield "pool.kv", Matmul(m=rows, k=d, n=2 * d, weights="fp32", bias=True)
    yield "pool.split", Elementwise(function="split", elements=2 * rows * d)
    yield (
        "pool.attend",
        AttentionOp(
            batch=batch,
            query_tokens=1,
            past_tokens=positions - 1,
            heads=last.attention.heads,
            kv_heads=last.attention.heads,
            head_size=d // last.attention.heads,
            rope=False,
            causal=False,
        ),
    )
    yield "pool.out", Matmul(m=batch, k=d, n=d, weights="fp32", bias=True)
    yield "pool.norm", lower_norm(arch, rows=batch, skip=False)
    for name, op in lower_ffn(last.ffn, d_model=d, weights="fp32", rows=batch):
        yield f"pool.ffn.{name}", op
    yield "pool.result", Elementwise(function="add", elements=batch * d, inputs=2)
