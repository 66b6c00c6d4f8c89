"""Operators of a pretrained image encoder outside its layers."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Classes, Pooler
from chipwise.model.blocks.embedding.lower import lower_cut
from chipwise.model.blocks.ffn.lower import lower as lower_ffn
from chipwise.model.blocks.lowering import Operators, Pass
from chipwise.model.blocks.norm.lower import lower as lower_norm
from chipwise.model.kinds.image.gives import gives
from chipwise.model.kinds.image.patches.lower import lower_classes, lower_patches
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.question.projector.lower import lower_projector
from chipwise.model.kinds.question.projector.spec import Projector
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.op import Op
from chipwise.model.ops.pool import PoolOp


def _stem(at: Pass) -> None:
    stem = at.arch.stem_as(ImageStem)
    at.tokens = stem.tokens
    at.put("stem", lower_patches(at.arch, stem, weights=at.head, batch=at.batch))
    if at.arch.embedding_norm:
        at.put_norm("embedding_norm")


def _head(at: Pass) -> None:
    """Adds the operators after the layers: residual sum and norm, then pooling, projection or projector."""
    arch, batch, d, kind = at.arch, at.batch, at.arch.d_model, gives(at.arch)
    stem = arch.stem_as(ImageStem)
    patches = Elementwise(function="split", elements=batch * stem.patches * d)
    if kind == "vector" and arch.head.pooling == "first":
        at.put_sum()
        at.put("first", [("", lower_cut(width=d, rows=at.rows, kept=batch))])
        at.tokens = 1
    if kind == "logits":
        at.put_sum()
        at.put("patches", [("", patches)])
        at.put("mean", [("", PoolOp(batch=batch, positions=stem.patches, width=d))])
        at.tokens = 1
    at.put_end()
    if kind == "tokens":
        projector = arch.head_as(Projector)
        if stem.prefix_tokens:
            at.put("patches", [("", patches)])
        at.put("projector", lower_projector(projector, stem, d_model=d, weights=at.head, batch=batch))
        if projector.bias:
            values = batch * projector.tokens_of(stem.grid, stem.axes) * projector.widths[-1]
            at.put("projector", [("out", Elementwise(function="add", elements=values, inputs=2))])
    elif arch.head.pooling == "attention":
        at.put("pool", _pooled(arch, positions=stem.tokens, batch=batch))
    if isinstance(arch.head, Pooler):
        at.put("pooler", [("", Matmul(m=batch, k=d, n=d, weights=at.head, bias=True))])
        at.put("pooler", [("tanh", Elementwise(function="gelu", elements=batch * d))])
    if isinstance(arch.head, Classes):
        at.put("head", lower_classes(arch, weights=at.head, batch=batch, positions=1))
    if arch.head.projection:
        at.put("projection", [("", Matmul(m=batch, k=d, n=arch.head.projection, weights="fp32"))])


def _pooled(arch: ArchSpec, *, positions: int, batch: int) -> Iterator[tuple[str, Op]]:
    """Operators of attention pooling, in FP32: one learned query over all ``positions``, a norm and a feed-forward."""
    d, last, rows = arch.d_model, arch.layers[-1], batch * positions
    assert last.attention is not None  # as ``IMAGE_ENCODER.require`` has checked; likewise the feed-forward
    assert last.ffn is not None
    yield "queries", Elementwise(function="pad", elements=batch * d)
    yield "kv", Matmul(m=rows, k=d, n=2 * d, weights="fp32", bias=True)
    yield "split", Elementwise(function="split", elements=2 * rows * d)
    heads = last.attention.heads
    attend = AttentionOp(
        batch=batch,
        query_tokens=1,
        past_tokens=positions - 1,
        heads=heads,
        kv_heads=heads,
        head_size=d // heads,
        rope=False,
        causal=False,
    )
    yield "attend", attend
    yield "out", Matmul(m=batch, k=d, n=d, weights="fp32", bias=True)
    yield "norm", lower_norm(arch, rows=batch, skip=False)
    for name, op in lower_ffn(last.ffn, d_model=d, weights="fp32", rows=batch):
        yield f"ffn.{name}", op
    yield "result", Elementwise(function="add", elements=batch * d, inputs=2)


OPERATORS = Operators(stem=_stem, head=_head)
