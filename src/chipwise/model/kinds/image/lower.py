"""Operators of image models outside their layers, and of attention over patches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.embedding.lower import lower_cut
from chipwise.model.blocks.lowering import Named, Operators, Pass, Place, lower_layers
from chipwise.model.blocks.norm.lower import lower as lower_norm
from chipwise.model.kinds.image.patches.lower import lower_classes, lower_patches
from chipwise.model.kinds.image.pyramid import stage_archs
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.image.windows.lower import attention_ops
from chipwise.model.kinds.question.projector.lower import lower_projector
from chipwise.model.kinds.question.question import QuestionStem, image_of, question_of
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.graph import Placed
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.norm import NormOp


def last_attention(arch: ArchSpec) -> Place | None:
    """The last attention block if one position is pooled: after it, only that position is needed."""
    found = [i for i, layer in enumerate(arch.layers) if layer.attention is not None]
    return (found[-1], "attention") if found and arch.head.pooling in ("first", "last") else None


def attend(at: Pass, layer: int, block: Attention, weights: str, last: bool) -> Named:
    """The operators of attention over the positions of an image, or within its windows."""
    sizes = {"batch": at.batch, "layer": layer, "positions": at.arch.request_tokens}
    return attention_ops(block, image_of(at.arch.stem), at.arch.d_model, weights, cut=last, **sizes)


def _stem(at: Pass) -> None:
    arch, stem, asked = at.arch, image_of(at.arch.stem), question_of(at.arch.stem)
    at.tokens = arch.request_tokens
    at.put("stem", lower_patches(arch, stem, weights=at.head, batch=at.batch))
    if asked is not None:
        at.placed += _question(arch, asked, weights=at.head, batch=at.batch)
    if stem.stages:
        _stages(at, stem)
    if arch.head.pooling in ("first", "last") and at.last is None:
        at.put("stem", [("first", lower_cut(width=arch.d_model, rows=at.rows, kept=at.batch))])
        at.tokens = 1


def _head(at: Pass) -> None:
    at.put_norm("norm")
    at.put("head", lower_classes(at.arch, weights=at.head, batch=at.batch, positions=at.tokens))


OPERATORS = Operators(stem=_stem, attend=attend, head=_head, last=last_attention)


def _stages(at: Pass, stem: ImageStem) -> None:
    """Adds the norm of the patches, and the stages before the model's layers, each with its patch merging."""
    inner = stage_archs(at.arch, stem)
    at.put("stem", [("norm", lower_norm(inner[0], rows=at.batch * inner[0].max_tokens, skip=False))])
    for i, arch in enumerate(inner):
        d, place = arch.d_model, f"stages.{i}"
        stage = replace(at, arch=arch, layers=[at.head] * len(arch.layers), tokens=arch.max_tokens, last=None)
        lower_layers(stage, OPERATORS, before=f"{place}.")
        following, rows = [*inner, at.arch][i + 1].d_model, stage.rows
        at.put(f"{place}.sum", [("", Elementwise(function="add", elements=rows * d, inputs=2))])
        at.put(f"{place}.four", [("", Elementwise(function="transpose", elements=rows * d))])
        at.put(f"{place}.norm", [("", NormOp(rows=rows // 4, width=4 * d, norm=arch.norm, bias=arch.norm_bias))])
        at.put(f"{place}.merge", [("", Matmul(m=rows // 4, k=4 * d, n=following, weights=at.head))])


def _question(arch: ArchSpec, asked: QuestionStem, *, weights: str, batch: int) -> Iterator[Placed]:
    """Adds the projector, the words' embedding, their concatenation (or the image's norm), and positions."""
    d, rows = arch.d_model, batch * arch.request_tokens
    for name, op in lower_projector(asked.projector, asked.image, d_model=d, weights=weights, batch=batch):
        yield Placed(place=f"projector.{name}", op=op)
    table = EmbeddingOp(tokens=batch * asked.question.tokens, width=d, rows=asked.question.words)
    yield Placed(place="question.words", op=table)
    if arch.crosses:
        read = Elementwise(function="add", elements=batch * arch.image_tokens * d, inputs=2)
        yield Placed(place="question.image", op=read)
        norm = lower_norm(arch, rows=batch * arch.image_tokens, skip=False)
        yield Placed(place="question.image_norm", op=norm)
    else:
        yield Placed(place="question.behind", op=Elementwise(function="pad", elements=rows * d))
    yield Placed(place="question.positions", op=Elementwise(function="add", elements=rows * d, inputs=2))
