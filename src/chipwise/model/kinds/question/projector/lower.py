"""A projector as operators."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.arch.trunk import NormKind
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.question.projector.spec import Projector
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.op import Op
from chipwise.model.ops.pool import PoolOp


def lower_projector(
    projector: Projector, stem: ImageStem, *, d_model: int, weights: str, batch: int
) -> Iterator[tuple[str, Op]]:
    """The operators from patches of ``batch`` images to tokens. The last bias is part of the position table."""
    square = (projector.pool * projector.join) ** stem.axes
    patches, rows = batch * stem.patches, batch * stem.patches // square
    if projector.norm != "none" and not projector.norm_joined:
        yield "norm", _norm(projector, patches, d_model)
    if square > 1:
        yield "squares", Elementwise(function="transpose", elements=patches * d_model)
    if projector.pool > 1:
        yield "mean", PoolOp(batch=rows, positions=square, width=d_model)
    if projector.norm != "none" and projector.norm_joined:
        yield "norm", _norm(projector, rows, projector.joined_width(d_model, stem.axes))
    shapes = projector.shapes(d_model, stem.axes)
    for i, (into, out) in enumerate(shapes):
        last = i + 1 == len(shapes)
        yield f"{i}", Matmul(m=rows, k=into, n=out, weights=weights, bias=not last)
        if not last:
            yield f"{i}.activation", Elementwise(function="gelu", elements=rows * out)


def _norm(projector: Projector, rows: int, width: int) -> NormOp:
    kind: NormKind = "layernorm" if projector.norm == "layernorm" else "rmsnorm"
    return NormOp(rows=rows, width=width, norm=kind, bias=kind == "layernorm")
